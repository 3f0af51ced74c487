// Drives a Daytona at $DAYTONA_API_URL with the vendor's own client, and prints
// what it sees as JSON, one line for each step.
import { Daytona } from '@daytonaio/sdk'

const say = (step, seen) => process.stdout.write(JSON.stringify({ step, ...seen }) + '\n')
const client = (apiKey) => new Daytona({ apiKey, apiUrl: process.env.DAYTONA_API_URL, target: 'here', useDeprecatedPolling: true })
const refused = async (work) => {
  try {
    await work()
    return { status: 0 }
  } catch (e) {
    return { status: e.statusCode, name: e.constructor.name }
  }
}

const daytona = client(process.env.DAYTONA_API_KEY)
const sandbox = await daytona.create({ labels: { made: 'by the check' }, envVars: { FROM_CREATE: 'yes' }, autoStopInterval: 60 })
say('create', { state: sandbox.state, labels: sandbox.labels, autoStop: sandbox.autoStopInterval })

let listed = 0
for await (const s of daytona.list({ labels: { made: 'by the check' } })) listed += s.id === sandbox.id ? 1 : 0
say('list', { listed })

const dir = await sandbox.getWorkDir()
const ran = await sandbox.process.executeCommand('echo "$A $FROM_CREATE"; echo err >&2; pwd; exit 7', dir, { A: 'it\'s "quoted"' })
say('execute', { code: ran.exitCode, result: ran.result.replaceAll(dir, '<dir>') })

await sandbox.process.createSession('one')
const now = await sandbox.process.executeSessionCommand('one', { command: 'echo out; echo err >&2; (exit 3)' })
say('session', { code: now.exitCode, stdout: now.stdout, stderr: now.stderr })

const later = await sandbox.process.executeSessionCommand('one', { command: 'echo a; echo b >&2; printf unfinished; (exit 4)', runAsync: true })
const streams = { stdout: '', stderr: '' }
await sandbox.process.getSessionCommandLogs('one', later.cmdId, (s) => (streams.stdout += s), (s) => (streams.stderr += s))
const record = await sandbox.process.getSessionCommand('one', later.cmdId)
say('follow', { code: record.exitCode, ...streams })

const endless = await sandbox.process.executeSessionCommand('one', { command: 'sleep 600', runAsync: true })
await sandbox.process.deleteSession('one')
say('session deleted', await refused(() => sandbox.process.getSessionCommand('one', endless.cmdId)))

const bytes = Buffer.from([...Array(256).keys()])
await sandbox.fs.uploadFile(bytes, dir + '/some/where/bytes')
const back = await sandbox.fs.downloadFile(dir + '/some/where/bytes')
const details = await sandbox.fs.getFileDetails(dir + '/some/where/bytes')
say('files', { same: bytes.equals(back), size: details.size, isDir: details.isDir })
say('no such file', await refused(() => sandbox.fs.downloadFile(dir + '/missing')))
say('no such file to look at', await refused(() => sandbox.fs.getFileDetails(dir + '/missing')))

await sandbox.stop()
say('stop', { state: sandbox.state })
say('stopped', await refused(() => sandbox.process.executeCommand('true')))
await sandbox.start()
say('start', { state: sandbox.state, same: bytes.equals(await sandbox.fs.downloadFile(dir + '/some/where/bytes')) })

say('wrong key', await refused(() => client('wrong').get(sandbox.id)))
await sandbox.delete()
say('deleted', await refused(() => daytona.get(sandbox.id)))
process.exit(0)
