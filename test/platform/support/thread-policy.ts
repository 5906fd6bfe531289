/** Policies of main threads, as Linux shows them. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

const POLICY_FIELD = 38;
export const SCHED_OTHER = 0;
export const SCHED_IDLE = 5;

/** Options of tests that need the right to leave SCHED_IDLE. */
export const onlyWhereItReturns: { skip: false | string } = {
  skip:
    spawnSync('chrt', ['-i', '0', 'chrt', '-o', '0', 'true']).status !== 0 &&
    'this process could not take its usual policy back',
};

export function readPolicy(pid: number | undefined): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[POLICY_FIELD]);
}
