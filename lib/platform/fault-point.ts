/**
 * Named places at which a test ends a real process or makes it fail, to show that being cut off there does no harm:
 * `HYPERCUBE_FAULT=agent.staged:kill`, or `…:error:3` for the third time the process comes by. Read once at start; without
 * the variable a fault point is one comparison.
 *
 * Names are `<part>.<what has just been done>`: agent.fetched, agent.staged, agent.loaded, agent.activated, agent.unloaded, agent.removed;
 * publish.layers, publish.files, publish.manifest; gc.manifest, gc.object; rollout.<state entered>,
 * rollout.pointed (the candidate channel), rollout.moved, rollout.back.
 */
import { CubeError } from '../core/errors.ts';

interface Fault {
  readonly name: string;
  readonly effect: 'kill' | 'error';
  /** Times the process has yet to come by. */
  remaining: number;
}

const FAULT = /^([a-z]+\.[a-z-]+):(kill|error)(?::([1-9]\d{0,5}))?$/;

const armed: Fault | undefined = readFault(process.env['HYPERCUBE_FAULT']);

/** @throws CubeError INTERNAL where the variable asks for an error */
export function faultPoint(name: string): void {
  if (armed === undefined) return;
  if (armed.name !== name) return;
  armed.remaining -= 1;
  if (armed.remaining !== 0) return;
  if (armed.effect === 'kill') process.kill(process.pid, 'SIGKILL');
  throw new CubeError('INTERNAL', `HYPERCUBE_FAULT: failed at ${name} as asked`);
}

/** A mistyped fault must not pass for a test that was survived. */
function readFault(text: string | undefined): Fault | undefined {
  if (text === undefined || text === '') return undefined;
  const [, name = '', effect = '', times = '1'] = FAULT.exec(text) ?? [];
  if (effect === 'kill' || effect === 'error') return { name, effect, remaining: Number(times) };
  throw new CubeError(
    'INVALID_ARGUMENT',
    `HYPERCUBE_FAULT: expected <point>:<kill|error>[:<nth time>], got ${JSON.stringify(text)}`,
  );
}
