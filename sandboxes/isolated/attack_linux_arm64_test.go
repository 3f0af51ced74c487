package isolated

func attacksHere() []attack { return nil }
