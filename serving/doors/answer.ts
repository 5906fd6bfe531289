/**
 * How every door answers a prediction: let in, give it a deadline, read the request, predict, count, write the answer. What a
 * request may not do is a CubeError with one line that says what was wrong and what to do; the fronts turn it into their
 * protocol's words.
 */
import type { IncomingHttpHeaders, ServerResponse } from 'node:http';
import { CubeError } from '../../lib/core/errors.ts';
import type { GrpcCall } from '../../lib/rpc/grpc-calls.ts';
import type { CallerSignal } from '../engine/engine-request.ts';
import type { Prediction } from '../engine/predictor.ts';
import { TIMEOUT_MS_MAX } from '../serving-limits.ts';
import type { Door } from '../serving-metrics.ts';
import type { DoorContext } from './fronts.ts';
import type { Question } from './question.ts';

export type { Question } from './question.ts';

/** What the protocol says of a call, beside its body. */
export interface DoorCall {
  /** How long the caller waits from now on; undefined: it does not say. @throws CubeError INVALID_ARGUMENT */
  timeoutMs(): number | undefined;
  readonly signal: CallerSignal;
}

/** @param read takes the bundle and the rows from the request; called once, after the request is let in */
export async function answer<T>(
  context: DoorContext,
  door: Door,
  call: DoorCall,
  read: () => Question<T>,
): Promise<T> {
  const { admission, metrics, clock } = context;
  const startMs = clock.nowMs();
  try {
    admission.enter();
  } catch (error) {
    metrics.onFailure(door, CubeError.from(error).code);
    throw error;
  }
  try {
    const prediction = await ask(context, call, read, startMs);
    metrics.onPrediction(door, prediction.prediction);
    return prediction.question.answer(prediction.prediction);
  } catch (error) {
    metrics.onFailure(door, CubeError.from(error).code);
    throw error;
  } finally {
    admission.leave();
    metrics.onAnswered(door, (clock.nowMs() - startMs) / 1_000);
  }
}

async function ask<T>(
  { predictor, timeoutMs, onAnswered }: DoorContext,
  call: DoorCall,
  read: () => Question<T>,
  startMs: number,
): Promise<{ question: Question<T>; prediction: Prediction }> {
  const callerMs = call.timeoutMs() ?? timeoutMs;
  // No await between taking the version and entering it: a version in use is never retired.
  const question = read();
  const deadlineMs = startMs + Math.min(callerMs, question.timeoutMs ?? callerMs);
  const prediction = await predictor.predict(question.bundle, question.rows, {
    deadlineMs,
    signal: call.signal,
    ...(question.priority === undefined ? {} : { priority: question.priority }),
    ...(question.detail === undefined ? {} : { detail: question.detail }),
  });
  onAnswered?.(question, prediction);
  return { question, prediction };
}

/** Of HTTP: the header `timeout-ms`; the caller has gone when its connection closes before the answer is out. */
export function httpCall(headers: IncomingHttpHeaders, raw: ServerResponse): DoorCall {
  // Looked at, not told: a controller and a listener for each request cost more than all the looks.
  const signal = {
    get aborted(): boolean {
      return raw.destroyed && !raw.writableFinished;
    },
  };
  return { timeoutMs: () => readTimeout(headers['timeout-ms']), signal };
}

/** Of gRPC: its own deadline and cancellation. */
export function grpcCall(call: GrpcCall): DoorCall {
  const { timeLeftMs } = call;
  const timeoutMs = Number.isFinite(timeLeftMs) ? Math.min(timeLeftMs, TIMEOUT_MS_MAX) : undefined;
  return { timeoutMs: () => timeoutMs, signal: call.signal };
}

/** Of a baidu_std frame: the meta's `timeout_ms`, 0 when the caller did not say. */
export function baiduCall(timeoutMs: number, signal: CallerSignal): DoorCall {
  const own = timeoutMs > 0 ? Math.min(timeoutMs, TIMEOUT_MS_MAX) : undefined;
  return { timeoutMs: () => own, signal };
}

function readTimeout(header: string | string[] | undefined): number | undefined {
  if (header === undefined) return undefined;
  const value = typeof header === 'string' && /^\d{1,6}$/.test(header) ? Number(header) : 0;
  if (value >= 1 && value <= TIMEOUT_MS_MAX) return value;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `header timeout-ms: expected an integer in 1..${TIMEOUT_MS_MAX}, got ${JSON.stringify(header)}`,
  );
}

/** A request's body as text. @throws CubeError INVALID_ARGUMENT when it is empty or not UTF-8 */
export function textOf(body: unknown): string {
  if (!(body instanceof Uint8Array) || body.length === 0) {
    throw new CubeError('INVALID_ARGUMENT', 'the body is empty: send at least one row');
  }
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(body);
  } catch {
    throw new CubeError('INVALID_ARGUMENT', 'the body is not UTF-8 text');
  }
}
