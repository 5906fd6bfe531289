/** One run: all requests are encoded before the clock starts, then sent and recorded. */

import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import type { RequestProfile } from '../../../lib/core/request-profile.ts';
import { systemClock, toUnixMs } from '../../../lib/platform/clock.ts';
import type { ProtocolClient, SendRequest } from '../protocols/protocol-client.ts';
import type { RecordedRequest } from '../rows/recording.ts';
import { LoadGenerator, type LoadResult, type LoadSchedule } from './load-generator.ts';
import { ResponseRecorder } from './response-recorder.ts';

/** An encoded request with rows start … end (exclusive). */
export interface PreparedRequest {
  readonly start: number;
  readonly end: number;
  /** Experiment key; '' is none. */
  readonly key: string;
  /** Replayed requests only: when it is due after the start. */
  readonly dueMs?: number;
  readonly send: SendRequest;
}

/** Which requests a worker sends: every `count`-th, from `index`. */
export interface WorkShare {
  readonly index: number;
  readonly count: number;
}

/**
 * @param batchRows maximum rows of a request; all have the same key
 * @param rowKeys the experiment key of a row; '' is none
 * @param share the requests that are prepared; default: all
 */
export function prepareRequests(
  caller: ProtocolClient,
  rowCount: number,
  batchRows: number,
  rowKeys: (row: number, batchRows: number) => string,
  { index, count }: WorkShare = { index: 0, count: 1 },
): PreparedRequest[] {
  const requests: PreparedRequest[] = [];
  for (let start = 0, i = 0; start < rowCount; i++) {
    const key = rowKeys(start, batchRows);
    const endMax = Math.min(start + batchRows, rowCount);
    let end = start + 1;
    while (end < endMax && rowKeys(end, batchRows) === key) end++;
    if (i % count === index) {
      requests.push({ start, end, key, send: caller.prepareRequest(start, end, key) });
    }
    start = end;
  }
  return requests;
}

/**
 * @param speed 2: the requests are due in half of the recorded time
 * @param rowKeys the experiment key of the i-th request; '' is none
 * @param share the requests that are prepared; default: all
 */
export function prepareReplay(
  caller: ProtocolClient,
  recorded: readonly RecordedRequest[],
  speed: number,
  rowKeys: (request: number, batchRows: 1) => string,
  { index, count }: WorkShare = { index: 0, count: 1 },
): PreparedRequest[] {
  return recorded.flatMap(({ start, end, atMs }, i) => {
    if (i % count !== index) return [];
    const key = rowKeys(i, 1);
    return [{ start, end, key, dueMs: atMs / speed, send: caller.prepareRequest(start, end, key) }];
  });
}

/** An answered request; times are milliseconds since 1970. */
export interface TracedRequest {
  readonly sentMs: number;
  readonly endMs: number;
  readonly rows: number;
  readonly version: string;
  readonly profile: RequestProfile;
}

type OnProfile = (request: TracedRequest) => void;

/** Sends a request once and records response or failure. @returns whether it was answered */
export async function sendAndRecord(
  { start, end, send }: PreparedRequest,
  recorder: ResponseRecorder,
  dueMs: number,
  startMs: number,
  onProfile?: OnProfile,
): Promise<boolean> {
  try {
    const sentMs = systemClock.nowMs();
    const response = await send();
    const nowMs = systemClock.nowMs();
    recorder.recordResponse(start, response, nowMs - dueMs, nowMs - startMs);
    const { profile, version } = response;
    if (profile !== undefined) {
      const times = { sentMs: toUnixMs(sentMs), endMs: toUnixMs(nowMs) };
      onProfile?.({ ...times, rows: end - start, version, profile });
    }
    return true;
  } catch (error) {
    recorder.recordFailure(CubeError.from(error), start, end);
    return false;
  }
}

export interface LoadRunOptions {
  readonly requests: readonly PreparedRequest[];
  readonly rowCount: number;
  readonly schedule: LoadSchedule;
  /** Warm-up before the run, not recorded. */
  readonly warmUpMs?: number;
  readonly stop: AbortSignal;
  readonly onRows?: (rowsDone: number) => void;
  /** Gets the profiles of the requests after the warm-up, where responses have them. */
  readonly onProfile?: OnProfile | undefined;
}

export interface LoadRunResult {
  readonly load: LoadResult;
  readonly recorder: ResponseRecorder;
}

export async function runLoad(options: LoadRunOptions): Promise<LoadRunResult> {
  const { requests, rowCount, warmUpMs = 0, stop, onRows } = options;
  const dueMs = requests.flatMap((request) => request.dueMs ?? []);
  const schedule = { ...options.schedule, ...(dueMs.length > 0 && { dueMs }) };
  const pass = async (
    passSchedule: LoadSchedule,
    recorder: ResponseRecorder,
    onProfile?: OnProfile,
  ): Promise<LoadResult> => {
    const startMs = systemClock.nowMs();
    let rowsDone = 0;
    const work = async (batch: number, dueMs: number): Promise<boolean> => {
      const request = requireDefined(requests[batch], 'a request');
      const isAnswered = await sendAndRecord(request, recorder, dueMs, startMs, onProfile);
      rowsDone += request.end - request.start;
      onRows?.(rowsDone);
      return isAnswered;
    };
    return new LoadGenerator(passSchedule, requests.length, work, stop).run();
  };
  if (warmUpMs > 0)
    await pass({ ...schedule, durationMs: warmUpMs }, new ResponseRecorder(rowCount));
  const recorder = new ResponseRecorder(rowCount);
  return { load: await pass(schedule, recorder, options.onProfile), recorder };
}
