/**
 * How every protocol handles a prediction: admit the request, set its deadline, parse it, predict,
 * count, format the response. A protocol supplies a function that parses the request into a
 * `ParsedRequest`, which in turn formats the response. Errors are CubeErrors; the servers translate
 * them to the protocol.
 */
import type { CallGrant } from '../../lib/access/access-gate.ts';
import { UNRESTRICTED } from '../../lib/access/principal.ts';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import { isLargeJson, runAtOnce, type SlicedWork } from '../../lib/core/json-slices.ts';
import type { TraceAttributes, TraceSpan } from '../../lib/core/trace-span.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { startRequestSpan } from '../../lib/platform/tracing.ts';
import type { ControlAccess } from '../../lib/rpc/control-access.ts';
import type { HttpAdmit } from '../../lib/rpc/direct-routes.ts';
import type { GrpcAdmit } from '../../lib/rpc/grpc-calls.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { GraphCall, GraphPrediction } from '../engine/loaded-graph.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import type { Prediction, PredictionSummary, PredictOptions } from '../engine/prediction.ts';
import type { Predictor } from '../engine/predictor.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import type { EngineLoad } from '../engine/version-use.ts';
import type { ExposureLog } from '../metrics/exposure-log.ts';
import type { RequestLog } from '../metrics/request-log.ts';
import type { ProtocolName, ServingMetrics } from '../metrics/serving-metrics.ts';
import type { ExperimentLogs } from '../models/experiment-logs.ts';
import type { ExperimentedRequest, Experiments, VersionFinder } from '../models/experiments.ts';
import type { Models } from '../models/model-registry.ts';
import type { ShadowedRequest, Shadows } from '../models/shadows.ts';
import type { Admission } from './admission.ts';
import { type CallContext, type HeadContext, toCallTimeoutMs } from './call-context.ts';
import { getClickProbabilities } from './ctr-response.ts';
import { PredictionProfile } from './request-profile.ts';
import { RequestVersion } from './request-version.ts';
import type { SliceQueue } from './slice-queue.ts';

/** Options of a request in its body. */
export interface RequestOptions {
  /** The timeout in the body. The shorter of this and the timeout of the call applies. */
  readonly timeoutMs?: number | undefined;
  /** Maximum wait in the queue of a model whose queue policy allows requests to give one. */
  readonly queueTimeoutMs?: number | undefined;
  /** 0 is the highest priority. */
  readonly priority?: number | undefined;
  /** Report lookup outcomes per slot. */
  readonly detail?: boolean | undefined;
  /** Report the steps of the request with their times, beside the response. */
  readonly profile?: boolean | undefined;
}

/** A request for a bundle, read from its protocol, and how to format its response. */
export interface ParsedRequest<T> extends RequestOptions {
  readonly bundle: LoadedBundle;
  readonly rows: FeatureRows | KeyedRows;
  formatResponse(prediction: Prediction): T;
}

/** The same for a plain model. */
export interface ParsedGraphRequest<T> extends RequestOptions {
  readonly graph: TensorModel;
  readonly call: GraphCall;
  formatResponse(prediction: GraphPrediction): T;
}

export type AnyParsedRequest<T> = ParsedRequest<T> | ParsedGraphRequest<T>;

const PROTOBUF_TYPES = ['application/proto', 'application/protobuf', 'application/x-protobuf'];

/** What every protocol needs to handle requests. */
export interface ProtocolContext {
  readonly models: Models;
  readonly experiments: Experiments;
  readonly experimentLogs: ExperimentLogs;
  readonly shadows: Pick<Shadows, 'offer' | 'close'>;
  /** Absent: exposures are not logged. */
  readonly exposures?: ExposureLog | undefined;
  readonly predictor: Pick<Predictor, 'predict'>;
  readonly admission: Admission;
  readonly metrics: ServingMetrics;
  readonly requestLog: RequestLog;
  /** Where large bodies are parsed. */
  readonly slices: SliceQueue;
  readonly logger: Logger;
  /** The deadline of requests that do not set one. */
  readonly timeoutMs: number;
  readonly clock: Clock;
  /** Decides which callers may load and unload models. */
  readonly access: ControlAccess;
  /**
   * Called after each prediction; must not throw or block.
   * @param arrivedMs when the request arrived, in the time of `clock`
   */
  readonly onPrediction?: (request: AnyParsedRequest<unknown>, arrivedMs: number) => void;
}

/** How a protocol reads a request. Both steps are repeated when an experiment needs it. */
export interface RequestSource<T, V extends LoadedVersion = LoadedVersion> {
  /** Finds the version that serves the request. @param models with the variants of experiments */
  find(models: VersionFinder): V;
  /**
   * Parses the request, once it is admitted; a large body in slices. @param choose gives the
   * version to parse it for, as soon as the experiment key in the body is known
   */
  parse(choose: (key?: string) => V): AnyParsedRequest<T> | SlicedWork<AnyParsedRequest<T>>;
}

export async function handlePrediction<T, V extends LoadedVersion>(
  context: ProtocolContext,
  protocol: ProtocolName,
  call: CallContext,
  source: RequestSource<T, V>,
): Promise<T> {
  const { admission, metrics, requestLog, clock } = context;
  const startMs = clock.nowMs();
  const span = startRequestSpan(`predict ${protocol}`, call);
  let experimented: ExperimentedRequest | undefined;
  let handled: HandledRequest<T> | undefined;
  let code: ErrorCode | 'OK' = 'OK';
  try {
    admission.enter();
  } catch (error) {
    const refusal = CubeError.from(error);
    metrics.recordFailure(protocol, refusal.code);
    span?.end(refusal.code, refusal.message);
    throw error;
  }
  let reason: string | undefined;
  try {
    experimented = context.experiments.begin(call.experimentKey());
    handled = await runPrediction(context, call, source, { startMs, experimented, span });
    metrics.recordPrediction(protocol, handled.summary);
    if (handled.summary.degraded) call.markDegraded();
    const { assignments } = experimented;
    if (assignments.length > 0) call.markVariants(formatVariants(assignments));
    const { profile } = handled;
    if (profile === undefined) return handled.formatResponse();
    const { response, text } = profile.format(handled.formatResponse, handled.summary);
    call.sendProfile(text);
    return response;
  } catch (error) {
    ({ code, message: reason } = CubeError.from(error));
    metrics.recordFailure(protocol, code);
    throw error;
  } finally {
    admission.leave();
    const durationMs = clock.nowMs() - startMs;
    metrics.recordDuration(protocol, durationMs / 1_000, code === 'OK' ? handled : undefined);
    requestLog.record({
      protocol,
      code,
      durationMs,
      model: handled?.model,
      prediction: handled?.summary,
    });
    if (span !== undefined) {
      span.setAttributes(describePrediction(protocol, handled));
      span.end(code, reason);
    }
    if (code === 'OK' && handled !== undefined) {
      context.shadows.offer({ durationMs, ...handled.shadowed });
    }
    if (experimented !== undefined && experimented.assignments.length > 0) {
      recordExperiment(context, experimented, { code, durationMs, handled });
    }
  }
}

interface StartedRequest {
  readonly startMs: number;
  readonly experimented: ExperimentedRequest;
  readonly span: TraceSpan | undefined;
}

type WithoutDuration<T> = T extends unknown ? Omit<T, 'durationMs'> : never;
type ShadowCopy = WithoutDuration<ShadowedRequest>;

interface HandledRequest<T> {
  /** The bundle or plain model. */
  readonly model: string;
  readonly summary: PredictionSummary;
  /** The click probabilities; none of plain models. */
  readonly scores: () => readonly number[];
  /** What shadows copy. */
  readonly shadowed: ShadowCopy;
  readonly profile?: PredictionProfile | undefined;
  readonly formatResponse: () => T;
}

/** The attributes of a request's span; of a failed one, what is known. */
function describePrediction(
  protocol: ProtocolName,
  handled: HandledRequest<unknown> | undefined,
): TraceAttributes {
  if (handled === undefined) return { 'hypercube.protocol': protocol };
  const { model, summary } = handled;
  const { queueMicros, lookupMicros, inferMicros, outputMicros, cacheMicros } = summary.timings;
  return {
    'hypercube.protocol': protocol,
    'hypercube.model': model,
    'hypercube.version': summary.version,
    'hypercube.rows': summary.rowCount,
    'hypercube.unseen': summary.unseen,
    'hypercube.unavailable': summary.unavailable,
    'hypercube.degraded': summary.degraded,
    'hypercube.queue_us': queueMicros,
    'hypercube.lookup_us': lookupMicros,
    'hypercube.infer_us': inferMicros,
    'hypercube.output_us': outputMicros,
    ...(cacheMicros !== undefined && { 'hypercube.cache_us': cacheMicros }),
  };
}

function recordExperiment(
  { metrics, exposures }: ProtocolContext,
  { assignments, key }: ExperimentedRequest,
  {
    code,
    durationMs,
    handled,
  }: {
    readonly code: ErrorCode | 'OK';
    readonly durationMs: number;
    readonly handled: HandledRequest<unknown> | undefined;
  },
): void {
  const scores = handled?.scores() ?? [];
  const unseen = handled?.summary.unseen ?? 0;
  metrics.experiments.record({ assignments, code, durationMs, scores, unseen });
  if (handled === undefined || code !== 'OK') return;
  const { model, summary } = handled;
  exposures?.record({ model, version: summary.version, assignments, key, scores });
}

async function runPrediction<T, V extends LoadedVersion>(
  context: ProtocolContext,
  call: CallContext,
  source: RequestSource<T, V>,
  { startMs, experimented, span }: StartedRequest,
): Promise<HandledRequest<T>> {
  const { admission, models, slices, timeoutMs } = context;
  const callTimeoutMs = call.timeoutMs() ?? timeoutMs;
  const wantsProfile = call.wantsProfile();
  const arrivedMs = call.arrivedMs ?? startMs;
  const remainingMs = callTimeoutMs - (startMs - arrivedMs);
  const principal = call.grant?.principal ?? UNRESTRICTED;
  // Shares are checked before the body is read; a request that passed then is not refused now.
  const urgency = { remainingMs, priority: principal.limitPriority(call.priority) };
  // No await between finding the version and acquiring it, here or in predict(): a version in use
  // is never retired.
  const version = new RequestVersion(experimented, () => {
    const loaded = source.find(experimented.finder);
    principal.checkModel(experimented.model ?? models.getName(loaded));
    admission.checkWait([loaded.batcher], urgency);
    return loaded;
  });
  let request: AnyParsedRequest<T>;
  do {
    const parsed = source.parse(version.choose);
    request = 'next' in parsed ? await version.parseInSlices(slices, parsed, call.signal) : parsed;
  } while (version.chooseByRows('graph' in request ? undefined : request));
  const rowCount = countRows(request);
  principal.takeRows(rowCount);
  if (call.grant !== undefined) admission.recordRows(principal, rowCount);
  const priority = principal.limitPriority(request.priority);
  const deadlineMs = arrivedMs + Math.min(callTimeoutMs, request.timeoutMs ?? callTimeoutMs);
  const { queueTimeoutMs } = request;
  const isProfiled = wantsProfile || request.profile === true;
  const profile = isProfiled
    ? new PredictionProfile(context.clock, { arrivedMs, startMs })
    : undefined;
  const options: PredictOptions = {
    deadlineMs,
    signal: call.signal,
    ...(span !== undefined && { span }),
    ...(call.grant !== undefined && { share: principal }),
    ...(queueTimeoutMs !== undefined && { queueTimeoutMs }),
    ...(priority === undefined ? {} : { priority }),
    ...(request.detail === undefined ? {} : { slotOutcomes: request.detail }),
    ...(profile !== undefined && { profile: profile.span }),
  };
  return { profile, ...(await predict(context, request, options, arrivedMs)) };
}

async function predict<T>(
  { models, predictor, onPrediction }: ProtocolContext,
  request: AnyParsedRequest<T>,
  options: PredictOptions,
  arrivedMs: number,
): Promise<HandledRequest<T>> {
  if ('graph' in request) {
    const { name: model, version } = request.graph;
    const prediction = await request.graph.predict(request.call, options);
    onPrediction?.(request, arrivedMs);
    const { rowCount, lookups = NO_LOOKUPS } = prediction;
    const { lookupMicros, ...counts } = lookups;
    const timings = { lookupMicros, ...prediction.timings };
    const summary = { version, rowCount, timings, ...counts };
    const formatResponse = (): T => request.formatResponse(prediction);
    const { graph, call } = request;
    const shadowed = { model: models.getName(graph), graph, call, answer: prediction };
    return { model, summary, shadowed, scores: () => NO_SCORES, formatResponse };
  }
  const prediction = await predictor.predict(request.bundle, request.rows, options);
  onPrediction?.(request, arrivedMs);
  return {
    model: request.bundle.name,
    summary: prediction,
    shadowed: {
      model: models.getName(request.bundle),
      bundle: request.bundle,
      rows: request.rows,
      prediction,
    },
    scores: () => [...getClickProbabilities(prediction, request.bundle.plan)],
    formatResponse: () => request.formatResponse(prediction),
  };
}

/** A plain model without a batch dimension has one row. */
function countRows(request: AnyParsedRequest<unknown>): number {
  if (!('graph' in request)) return request.rows.rowCount;
  return request.graph.isBatched ? (request.call.inputs[0]?.shape[0] ?? 1) : 1;
}

const NO_SCORES: readonly number[] = [];
const NO_LOOKUPS = { unseen: 0, unavailable: 0, degraded: false, lookupMicros: 0 } as const;

/** The work, for a text of many characters; its result for a small one. */
export function runUnlessLarge<T>(work: SlicedWork<T>, charCount: number): T | SlicedWork<T> {
  return isLargeJson(charCount) ? work : runAtOnce(work);
}

/**
 * Checks before the body of a request is read whether it will be admitted.
 * @param find the version that serves the request; undefined when only the body names it
 * @throws CubeError STOPPING, OVERLOADED, and the errors of `timeoutMs` and `find`
 */
export function checkAdmission(
  context: ProtocolContext,
  protocol: ProtocolName,
  call: HeadContext,
  find?: () => LoadedVersion,
): void {
  const result = admit(context, protocol, call, find);
  if (result instanceof CubeError) throw result;
}

/**
 * HTTP: the same for the head of a request. @returns the error; or, if the engine is known that
 * will run the request, a function to call when the body has arrived
 */
export function admitHead(
  context: ProtocolContext,
  protocol: ProtocolName,
  call: HeadContext,
  find?: () => LoadedVersion,
): ReturnType<HttpAdmit> {
  const result = admit(context, protocol, call, find);
  return result === undefined || result instanceof CubeError ? result : result.announce();
}

/** @returns the error; or the engine that will run the request, if it is known */
function admit(
  context: ProtocolContext,
  protocol: ProtocolName,
  call: HeadContext,
  find: (() => LoadedVersion) | undefined,
): EngineLoad | CubeError | undefined {
  let result: EngineLoad | CubeError | undefined;
  try {
    result = tryAdmit(context, call, find);
  } catch (error) {
    result = CubeError.from(error);
  }
  if (result instanceof CubeError) context.metrics.recordFailure(protocol, result.code);
  return result;
}

/** @throws CubeError */
function tryAdmit(
  { models, admission, timeoutMs, clock }: ProtocolContext,
  call: HeadContext,
  find: (() => LoadedVersion) | undefined,
): EngineLoad | CubeError | undefined {
  admission.checkOpen();
  const { arrivedMs, grant } = call;
  const principal = grant?.principal ?? UNRESTRICTED;
  const waitedMs = arrivedMs === undefined ? 0 : clock.nowMs() - arrivedMs;
  const urgency = {
    remainingMs: (call.timeoutMs() ?? timeoutMs) - waitedMs,
    priority: principal.limitPriority(call.priority),
    principal: grant?.principal,
    isHead: true,
  };
  if (find === undefined) {
    const engines = models.loadedVersions().map(({ batcher }) => batcher);
    return admission.findRefusal(engines, urgency);
  }
  const version = find();
  principal.checkModel(models.getName(version));
  return admission.findRefusal([version.batcher], urgency) ?? version.batcher;
}

/** Returns a version to a caller who may read about its model. @throws CubeError DENIED */
export function checkModelAccess(
  models: Pick<Models, 'getName'>,
  grant: CallGrant | undefined,
  loaded: LoadedVersion,
): LoadedVersion {
  grant?.principal.checkModel(models.getName(loaded));
  return loaded;
}

/**
 * gRPC: the check of a call's metadata, before its message is read.
 * @param find undefined when only the message names the model
 */
export function createGrpcAdmit(
  context: ProtocolContext,
  protocol: ProtocolName,
  find?: () => LoadedVersion,
): GrpcAdmit {
  return (remainingMs, grant) => {
    checkAdmission(
      context,
      protocol,
      { timeoutMs: () => toCallTimeoutMs(remainingMs), grant },
      find,
    );
  };
}

function formatVariants(assignments: ExperimentedRequest['assignments']): string {
  return assignments.map(({ experiment, variant }) => `${experiment}=${variant}`).join(', ');
}

const decoder = new TextDecoder('utf-8', { fatal: true });

/**
 * The body of a request as text. @throws CubeError INVALID_ARGUMENT when it is empty or not UTF-8
 */
export function readBodyText(body: unknown): string {
  if (!(body instanceof Uint8Array) || body.length === 0) {
    throw new CubeError('INVALID_ARGUMENT', 'the body is empty: send the request in it');
  }
  try {
    return decoder.decode(body);
  } catch {
    throw new CubeError('INVALID_ARGUMENT', 'the body is not UTF-8 text');
  }
}

/** @param contentType header of a request whose body is a binary message */
export function isProtobufType(contentType = ''): boolean {
  const type = contentType.split(';')[0]?.trim().toLowerCase() ?? '';
  return PROTOBUF_TYPES.includes(type);
}
