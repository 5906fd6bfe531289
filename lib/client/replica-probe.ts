/**
 * Probes: requests without keys that ask a replica, apart from any lookup, whether it is usable.
 * They cost the replica next to nothing (docs/adr/0003-empty-lookup-probes-a-version.md).
 */
import { CubeError, type ErrorCode } from '../core/errors.ts';
import type { TimerClock } from '../platform/clock.ts';
import type { ClientCounters } from './client-stats.ts';
import type { Replica } from './replica.ts';
import type { ReplicaSet } from './replica-set.ts';

/** The method that requests call, and the version of a bundle (or the dict) that they are about. */
export interface CallTarget {
  readonly service: string;
  readonly method: string;
  /** The key by which replicas are ranked, and by which loaded versions are remembered. */
  readonly versionKey: string;
  /** The method of probes; default: `method`. */
  readonly probeMethod?: string;
  /** Returns a request without keys. */
  probePayload(shard: number): Uint8Array;
  /** @throws CubeError when this is not a valid response to a probe */
  checkProbeResponse(payload: Uint8Array, attachment: Uint8Array): void;
  /**
   * Returns the keys of the versions that the replica has loaded, according to its error; empty
   * when it does not say.
   */
  getLoadedVersions(error: CubeError): readonly string[];
}

/** The state that all calls of one client share. */
export interface CallContext {
  readonly clock: TimerClock;
  readonly counters: ClientCounters;
}

/**
 * Errors that every replica would return alike: the caller, the fleet file or the server's build is
 * wrong.
 */
export const PERMANENT_ERRORS: ReadonlySet<ErrorCode> = new Set([
  'DENIED',
  'INVALID_ARGUMENT',
  'NOT_FOUND',
  'TOO_LARGE',
  'UNAUTHENTICATED',
  'UNSUPPORTED',
  'WRONG_SHARD',
]);

/** Whether an error shows that the replica is unhealthy; a version that is absent is no failure. */
export function isReplicaFailure({ code }: CubeError): boolean {
  // OVERLOADED shows nothing: this client's own limits give it too.
  return code !== 'OVERLOADED' && code !== 'VERSION_ABSENT' && !PERMANENT_ERRORS.has(code);
}

const PROBE_TIMEOUT_MS = 1_000;
const NO_BYTES = new Uint8Array(0);

/**
 * Probes a replica that has failed, is slow or is new, so that no lookup has to find out whether it
 * is usable. A probe that a silent replica does not answer opens its circuit.
 */
export function probeInBackground(
  context: CallContext,
  replicaSet: ReplicaSet,
  target: CallTarget,
  chosen: Replica,
  nowMs: number,
): void {
  const replica = replicaSet.pickProbe(chosen, nowMs);
  if (replica !== undefined) {
    void probeReplica(context, replicaSet.shard, replica, target, PROBE_TIMEOUT_MS);
  }
}

/**
 * Returns '' when the replica answers and has loaded the version, else the reason. Never rejects.
 */
export async function probeReplica(
  context: CallContext,
  shard: number,
  replica: Replica,
  target: CallTarget,
  timeoutMs: number,
): Promise<string> {
  const { clock, counters } = context;
  const { service, method, probeMethod = method, versionKey } = target;
  const startedMs = clock.nowMs();
  counters.probes++;
  try {
    const probe = target.probePayload(shard);
    const { payload, attachment } = await replica.call(
      service,
      probeMethod,
      probe,
      NO_BYTES,
      timeoutMs,
      startedMs,
    );
    target.checkProbeResponse(payload, attachment);
    const endedMs = clock.nowMs();
    replica.endProbe(startedMs, endedMs);
    replica.recordAnswer(versionKey, endedMs);
    return '';
  } catch (thrown) {
    const { code, message } = endFailedCall(context, shard, replica, target, startedMs, thrown);
    return `${replica.endpoint} ${code} (${message})`;
  }
}

/** Ends a call that failed: counts the failure, and updates the state of the replica by it. */
export function endFailedCall(
  context: CallContext,
  shard: number,
  replica: Replica,
  target: CallTarget,
  startedMs: number,
  thrown: unknown,
): CubeError {
  const { clock, counters } = context;
  const error = CubeError.from(thrown);
  const nowMs = clock.nowMs();
  replica.endCall(startedMs, nowMs, error);
  counters.failures++;
  if (error.code === 'VERSION_ABSENT') {
    counters.versionAbsentErrors++;
    const loaded = target.getLoadedVersions(error);
    replica.recordVersionAbsent(target.versionKey, loaded, nowMs);
  } else if (isReplicaFailure(error)) {
    const probe = () => probeReplica(context, shard, replica, target, PROBE_TIMEOUT_MS);
    replica.recordFailure(error, nowMs, probe);
  }
  return error;
}
