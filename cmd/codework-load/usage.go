package main

// usage is what a process and all below it have used.
type usage struct {
	CPU       float64 `json:"cpuSeconds"` // of children that ended, too
	Memory    int64   `json:"rssBytes"`   // resident; shared pages count in each process
	Processes int     `json:"processes"`
	Threads   int     `json:"threads"`
}
