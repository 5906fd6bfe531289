/**
 * Switches the versions of a server without a pause, from a process of its own that runs in idle
 * time, as agents do (ADR 56). From the process that measures latencies it would delay the calls
 * that it measures.
 */
import { type ChildProcess, fork, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { pathToFileURL } from 'node:url';
import { CONTROL_ACTIVATE, CONTROL_LOAD, CONTROL_UNLOAD } from '../../proto/control.ts';
import { callControl } from './cube-server-process.ts';

type Command = 'start' | 'stop';

/** The parent's side. */
export class SwitchProcess {
  readonly #child: ChildProcess;
  /** Rejects when the process ends. */
  readonly #ended: Promise<never>;

  /** @param address of a server that has version 1 active, and version 2 in its data folder */
  constructor(address: string) {
    this.#child = fork(import.meta.filename, [address]);
    this.#ended = once(this.#child, 'exit').then(() => {
      throw new Error('the process that switches versions ended');
    });
    // Once it has been told to end, nobody waits for it.
    this.#ended.catch(() => undefined);
    const { pid } = this.#child;
    const idle = spawnSync('chrt', ['--all-tasks', '--idle', '--pid', '0', `${pid}`]);
    if (idle.status !== 0) process.stderr.write('switches do not run in idle time: no chrt\n');
  }

  start(): void {
    this.#child.send('start' satisfies Command);
  }

  /** Ends after a whole switch. @returns the number of switches since the start */
  async stop(): Promise<number> {
    this.#child.send('stop' satisfies Command);
    const [switches] = await Promise.race([once(this.#child, 'message'), this.#ended]);
    return switches;
  }

  end(): void {
    this.#child.kill();
  }
}

/** The child's side: loads, activates and unloads versions until told to stop. */
async function serveCommands(address: string): Promise<void> {
  let active = '1';
  let isRunning = false;
  const run = async (): Promise<void> => {
    let switches = 0;
    isRunning = true;
    while (isRunning) {
      const next = active === '1' ? '2' : '1';
      await callControl(address, CONTROL_LOAD, next);
      await callControl(address, CONTROL_ACTIVATE, next);
      await callControl(address, CONTROL_UNLOAD, active, { force: true });
      active = next;
      switches++;
    }
    process.send?.(switches);
  };
  process.on('message', (command: Command) => {
    if (command === 'start') void run();
    else isRunning = false;
  });
  await once(process, 'disconnect');
  process.exit();
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await serveCommands(process.argv[2] ?? '');
}
