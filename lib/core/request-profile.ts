/**
 * The profile of a request: what the header (gRPC: metadata) or parameter `profile` asks for, and
 * what the header (gRPC: trailer) `profile` of the answer says.
 */

/** The header of a request, with the value 1 or true, and of its answer, with JSON. */
export const PROFILE_KEY = 'profile';

/** A part of the request with a known start; times are in microseconds. */
export interface ProfileStep {
  /** `body`, `parse`, `queue`, `batch`, `shard` or `format`. */
  readonly name: string;
  /** Since the start of the request. */
  readonly atUs: number;
  readonly us: number;
  /** A batch has rows and requests; a call to a shard has shard, keys, response_bytes, attempts. */
  readonly [attribute: string]: string | number | boolean;
}

/** Stages by their total duration; batches of one request may overlap. */
export interface ProfileStages {
  readonly queueUs: number;
  readonly lookupUs: number;
  readonly inferUs: number;
  readonly outputUs: number;
  /** The lookup in the request cache; absent without a cache. */
  readonly cacheUs?: number;
}

export interface RequestProfile {
  /** When the request arrived: milliseconds since 1970, by the clock of the server. */
  readonly startMs: number;
  readonly totalUs: number;
  readonly stages: ProfileStages;
  readonly steps: readonly ProfileStep[];
  /** Steps that were left out, because answers may not have long headers; absent: none. */
  readonly droppedSteps?: number;
}

/** @returns undefined when the text is not a profile */
export function parseProfile(text: string | undefined): RequestProfile | undefined {
  if (text === undefined) return undefined;
  try {
    const profile = JSON.parse(text) as RequestProfile;
    const { startMs, totalUs, steps } = profile;
    const isValid = Number.isFinite(startMs) && Number.isFinite(totalUs) && Array.isArray(steps);
    return isValid && steps.every(isStep) ? profile : undefined;
  } catch {
    return undefined;
  }
}

function isStep(step: Partial<ProfileStep> | null): boolean {
  return typeof step?.name === 'string' && Number.isFinite(step.atUs) && Number.isFinite(step.us);
}
