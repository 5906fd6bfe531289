/**
 * A program whose main thread runs in idle time. It is told what to do by its parent, and answers
 * with the result.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { IdleMainThread } from '../../../lib/platform/idle-main-thread.ts';

export type IdleCommand =
  | 'start'
  /** Starts a process with the prefix, and answers with its number. */
  | 'spawn with prefix'
  | 'spawn'
  /** Asks for the usual policy, and answers when the main thread has it. */
  | 'use usual'
  /** Computes in many short pieces without an end. */
  | 'compute';

const mainThread = new IdleMainThread();
const children: ChildProcess[] = [];

function spawnSleep(prefix: readonly string[]): number | undefined {
  const [command, ...args] = [...prefix, 'sleep', '600'];
  const child = spawn(command ?? '', args, { stdio: 'ignore' });
  children.push(child);
  return child.pid;
}

async function execute(command: IdleCommand): Promise<unknown> {
  switch (command) {
    case 'start':
      return mainThread.start(() => undefined);
    case 'spawn with prefix':
      return spawnSleep(mainThread.commandPrefix);
    case 'spawn':
      return spawnSleep([]);
    case 'use usual':
      return mainThread.useUsual();
    case 'compute':
      return compute();
  }
}

async function compute(): Promise<never> {
  for (;;) {
    const endMs = performance.now() + 5;
    while (performance.now() < endMs) Math.sqrt(2);
    await sleep(1);
  }
}

process.on('message', async (command: IdleCommand) => {
  process.send?.({ result: await execute(command) });
});
process.on('disconnect', () => {
  for (const child of children) child.kill('SIGKILL');
  process.exit();
});
