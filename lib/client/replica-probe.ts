/**
 * Asking a replica apart from any lookup whether it is usable: an empty question about what lookups ask, which costs it next to
 * nothing (docs/adr/0003-empty-lookup-probes-a-version.md).
 */
import { CubeError, type ErrorCode } from '../core/errors.ts';
import type { Clock } from '../platform/clock.ts';
import type { ClientCounters } from './client-stats.ts';
import type { Replica } from './replica.ts';
import type { ReplicaSet } from './replica-set.ts';

/** What questions are about: a version of a bundle, or a dict. */
export interface ShardSubject {
  readonly service: string;
  readonly method: string;
  /** Replicas are ranked and remembered by it. */
  readonly versionKey: string;
  /** A question without keys. */
  emptyPayload(shard: number): Uint8Array;
  /** @throws CubeError when this is no answer to it */
  checkEmpty(payload: Uint8Array, attachment: Uint8Array): void;
  /** The version keys that an error says a replica holds; empty when it does not say. */
  heldVersions(error: CubeError): readonly string[];
}

/** What all calls of one client share. */
export interface CallContext {
  readonly clock: Clock;
  readonly counters: ClientCounters;
}

/** The caller, the fleet file or the server's build is wrong: every replica would say the same. */
export const FATAL: ReadonlySet<ErrorCode> = new Set([
  'INVALID_ARGUMENT',
  'NOT_FOUND',
  'TOO_LARGE',
  'UNSUPPORTED',
  'WRONG_SHARD',
]);

const PROBE_TIMEOUT_MS = 1_000;
const NO_BYTES = new Uint8Array(0);

/** Lets a replica that failed, or is new, prove itself on an empty question instead of on a user's. */
export function probeAnother(
  context: CallContext,
  set: ReplicaSet,
  subject: ShardSubject,
  chosen: Replica,
  nowMs: number,
): void {
  if (set.replicas.length === 1) return;
  const replica = set.pickProbe(subject.versionKey, chosen, nowMs);
  if (replica !== undefined) {
    void probeReplica(context, set.shard, replica, subject, PROBE_TIMEOUT_MS);
  }
}

/** @returns '' when the replica answers, and holds the version, else the reason. Never rejects. */
export async function probeReplica(
  context: CallContext,
  shard: number,
  replica: Replica,
  subject: ShardSubject,
  timeoutMs: number,
): Promise<string> {
  const { clock, counters } = context;
  const { service, method, versionKey } = subject;
  const startedMs = clock.nowMs();
  counters.probes++;
  try {
    const question = subject.emptyPayload(shard);
    const { payload, attachment } = await replica.call(
      ...([service, method, question, NO_BYTES, timeoutMs, startedMs] as const),
    );
    subject.checkEmpty(payload, attachment);
    replica.exit(startedMs, clock.nowMs(), false);
    replica.answered(versionKey);
    return '';
  } catch (thrown) {
    replica.exit(startedMs, clock.nowMs(), true);
    const { code, message } = noteFailure(context, replica, subject, thrown);
    return `${replica.endpoint} ${code} (${message})`;
  }
}

/** Remembers what a failure says of a replica. */
export function noteFailure(
  { clock, counters }: CallContext,
  replica: Replica,
  subject: ShardSubject,
  thrown: unknown,
): CubeError {
  const error = CubeError.from(thrown);
  counters.failures++;
  if (error.code === 'VERSION_ABSENT') {
    counters.versionsAbsent++;
    replica.lacks(subject.versionKey, subject.heldVersions(error), clock.nowMs());
  } else if (error.code !== 'OVERLOADED' && !FATAL.has(error.code)) {
    // Too much at once is no fault of the replica: this client's own limit says so too.
    replica.failed(error, clock.nowMs());
  }
  return error;
}
