/**
 * Named points where a test kills a real process or makes it fail, to show that an interruption
 * there does no harm: `HYPERCUBE_FAULT=agent.staged:kill`, or `…:error:3` for the third time the
 * process reaches the point. All processes that share the variable fail there, for example a
 * restarted server. With `…@<file>` at the end, only the process that creates the file fails. The
 * variable is read once at start; without it a fault point costs one comparison.
 */
import { closeSync, openSync } from 'node:fs';
import { CubeError } from '../core/errors.ts';

/**
 * All fault points, as `<part>.<step just completed>`. docs/operations.md, "Effects of killed
 * processes", explains each.
 */
export const FAULT_POINTS = [
  'agent.fetched',
  'agent.staged',
  'agent.loaded',
  'agent.activated',
  'agent.unloaded',
  'agent.removed',
  'server.layer',
  'server.loaded',
  'server.activated',
  'server.unloaded',
  'build.spilled',
  'build.partitioned',
  'build.sorted',
  'build.shard',
  'build.published',
  'publish.part',
  'publish.layers',
  'publish.files',
  'publish.manifest',
  'channel.entry',
  'gc.begun',
  'gc.manifest',
  'gc.object',
  'rollout.seen',
  'rollout.pointed',
  'rollout.staging',
  'rollout.staged',
  'rollout.gating',
  'rollout.activating',
  'rollout.moved',
  'rollout.active',
  'rollout.retired',
  'rollout.failed',
  'rollout.back',
  'rollout.rolled-back',
  'rollout.quarantined',
  'gate.compared',
  'gate.reported',
  'donefile.published',
  'donefile.moved',
  'score.block',
] as const;

export type FaultPoint = (typeof FAULT_POINTS)[number];

interface Fault {
  readonly name: string;
  readonly effect: 'kill' | 'error';
  /** The fault happens when this reaches 0; each visit decrements it. */
  remaining: number;
  /** Only the first process to create this file fails. */
  readonly onceFile: string | undefined;
}

const FAULT = /^([a-z]+\.[a-z-]+):(kill|error)(?::([1-9]\d{0,5}))?(?:@(.+))?$/;

const armed: Fault | undefined = readFault(process.env['HYPERCUBE_FAULT']);

/** @throws CubeError INTERNAL where the variable asks for an error */
export function faultPoint(name: FaultPoint): void {
  if (armed === undefined) return;
  if (armed.name !== name) return;
  armed.remaining -= 1;
  if (armed.remaining !== 0 || !isFirst(armed.onceFile)) return;
  if (armed.effect === 'kill') process.kill(process.pid, 'SIGKILL');
  throw new CubeError('INTERNAL', `HYPERCUBE_FAULT: failed at ${name} as requested`);
}

function isFirst(path: string | undefined): boolean {
  if (path === undefined) return true;
  try {
    closeSync(openSync(path, 'wx'));
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

/** A mistyped fault must fail loudly: a test would otherwise pass without any fault. */
function readFault(text: string | undefined): Fault | undefined {
  if (text === undefined || text === '') return undefined;
  const [, name = '', effect, times = '1', onceFile] = FAULT.exec(text) ?? [];
  if (!(FAULT_POINTS as readonly string[]).includes(name)) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      'HYPERCUBE_FAULT: expected <point>:<kill|error>[:<nth time>][@<file>], ' +
        `got ${JSON.stringify(text)}; ` +
        `the points are ${FAULT_POINTS.join(', ')}`,
    );
  }
  return { name, effect: effect as Fault['effect'], remaining: Number(times), onceFile };
}
