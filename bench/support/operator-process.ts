/**
 * Commands of `cube-agent` in one process that stays: a process of its own for each command costs
 * more CPU time to start than the command takes, and in a fleet operators are on another machine.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { pathToFileURL } from 'node:url';
import { run } from '../../cube-agent/cli.ts';

/** The parent's side. It has the scheduling policy of the thread that creates it. */
export class OperatorProcess {
  readonly #child: ChildProcess;
  /** Rejects when the process ends. */
  readonly #ended: Promise<never>;

  constructor() {
    const stdio = ['ignore', 'ignore', 'inherit', 'ipc'] as const;
    this.#child = fork(import.meta.filename, { stdio: [...stdio] });
    this.#ended = once(this.#child, 'exit').then(() => {
      throw new Error('the process of the operator ended');
    });
    // Once it has been told to end, nobody waits for it.
    this.#ended.catch(() => undefined);
  }

  /** Runs one command at a time. @throws Error when it fails; the reason is on standard error */
  async run(args: readonly string[]): Promise<void> {
    this.#child.send(args);
    const [exitCode] = await Promise.race([once(this.#child, 'message'), this.#ended]);
    if (exitCode !== 0) throw new Error(`cube-agent ${args.join(' ')}: exit code ${exitCode}`);
  }

  end(): void {
    this.#child.kill();
  }
}

/** The child's side. */
async function serveCommands(): Promise<void> {
  process.on('message', async (args: readonly string[]) => {
    const code = await run(args);
    process.send?.(code === 0 ? (process.exitCode ?? 0) : code);
    process.exitCode = 0;
    // Commands wait for them, and expect to be alone in their process.
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.removeAllListeners(signal);
  });
  await once(process, 'disconnect');
  process.exit();
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await serveCommands();
