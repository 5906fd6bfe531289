/**
 * Runs commands of the product to their end: in this process, which saves the start of a process
 * and the loading of its modules, or in a process of their own.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { type CommandResult, DIST, runProcess } from './processes.ts';

interface Output {
  stdout: string;
  stderr: string;
}

/** Programs whose `run` function in cli.js can be called many times. */
const PROGRAMS: readonly string[] = [
  'cube-agent/main.js',
  'tools/cube-builder/main.js',
  'tools/cube-check/main.js',
  'tools/cube-cli/main.js',
  'tools/ctr-client/main.js',
  'tools/prune-model/main.js',
];
/** Commands of cube-agent that run until a signal; watch-donefiles does without --once. */
const ENDLESS_COMMANDS: readonly string[] = ['run', 'controller', 'watch-donefiles'];
const STOP_SIGNALS: readonly NodeJS.Signals[] = ['SIGINT', 'SIGTERM'];

const currentOutput = new AsyncLocalStorage<Output>();
let isCapturing = false;
/** Ends with the last command started: commands share `process.exitCode`, so they take turns. */
let lastTurn: Promise<unknown> = Promise.resolve();

/** Runs a command to its end: in this process where that makes no difference. */
export function runCommand(script: string, ...args: string[]): Promise<CommandResult> {
  const isEndless =
    ENDLESS_COMMANDS.includes(args[0] ?? '') && !['--help', '--once'].some((o) => args.includes(o));
  return isEndless || !PROGRAMS.includes(script)
    ? runProcess(script, ...args)
    : runInProcess(script, args);
}

export const runAgentCommand = (...args: string[]): Promise<CommandResult> =>
  runCommand('cube-agent/main.js', ...args);

function runInProcess(script: string, args: readonly string[]): Promise<CommandResult> {
  const turn = lastTurn.then(() => runCaptured(script, args));
  lastTurn = turn.catch(() => undefined);
  return turn;
}

async function runCaptured(script: string, args: readonly string[]): Promise<CommandResult> {
  captureStreams();
  const cli = pathToFileURL(join(DIST, script.replace('main.js', 'cli.js'))).href;
  const { run } = (await import(cli)) as { run: (argv: readonly string[]) => Promise<number> };
  const output = { stdout: '', stderr: '' };
  const { exitCode } = process;
  process.exitCode = undefined;
  const listeners = STOP_SIGNALS.map((signal) => process.rawListeners(signal));
  try {
    const code = await currentOutput.run(output, () => run(args));
    return { code, ...output };
  } finally {
    process.exitCode = exitCode;
    removeOtherListeners(listeners);
  }
}

/** A command that handles signals leaves that to the end of its process. */
function removeOtherListeners(kept: readonly (readonly unknown[])[]): void {
  for (const [i, signal] of STOP_SIGNALS.entries()) {
    for (const listener of process.rawListeners(signal)) {
      if (!kept[i]?.includes(listener)) {
        process.removeListener(signal, listener as NodeJS.SignalsListener);
      }
    }
  }
}

/** Other code, such as the test reporter, keeps writing to the real streams meanwhile. */
function captureStreams(): void {
  if (isCapturing) return;
  isCapturing = true;
  for (const name of ['stdout', 'stderr'] as const) {
    const stream = process[name];
    const write = stream.write.bind(stream) as (...args: unknown[]) => boolean;
    const capture = (chunk: string | Uint8Array, ...rest: unknown[]): boolean => {
      const output = currentOutput.getStore();
      if (output === undefined) return write(chunk, ...rest);
      output[name] += typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString();
      const written = rest.at(-1);
      if (typeof written === 'function') process.nextTick(written as () => void);
      return true;
    };
    stream.write = capture as typeof stream.write;
  }
}
