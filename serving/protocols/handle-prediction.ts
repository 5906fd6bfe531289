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
import { PROFILE_KEY } from '../../lib/core/request-profile.ts';
import type { TraceAttributes, TraceSpan } from '../../lib/core/trace-span.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { startRequestSpan } from '../../lib/platform/tracing.ts';
import type { ControlAccess } from '../../lib/rpc/control-access.ts';
import type { HttpAdmit, HttpRequest, HttpRequestHead } from '../../lib/rpc/direct-routes.ts';
import type { GrpcAdmit, GrpcCall } from '../../lib/rpc/grpc-calls.ts';
import { DEGRADED_KEY, EXPERIMENT_KEY, EXPERIMENTS_KEY } from '../../proto/ctr.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { GraphCall, GraphPrediction } from '../engine/loaded-graph.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import type {
  CancelSignal,
  Prediction,
  PredictionSummary,
  PredictOptions,
} from '../engine/prediction.ts';
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
import { getClickProbabilities } from './ctr-response.ts';
import { checkExperimentKey, TIMEOUT_MS_MAX } from './request-limits.ts';
import { PredictionProfile, readProfileFlag } from './request-profile.ts';
import { RequestVersion } from './request-version.ts';
import type { SliceQueue } from './slice-queue.ts';

/** Options of a request in its body. */
interface RequestOptions {
  /** The timeout in the body. The shorter of this and the timeout of the call applies. */
  readonly timeoutMs?: number;
  /** Maximum wait in the queue of a model whose queue policy allows requests to give one. */
  readonly queueTimeoutMs?: number;
  /** 0 is the highest priority. */
  readonly priority?: number;
  /** Report lookup outcomes per slot. */
  readonly detail?: boolean;
  /** Report the steps of the request with their times, beside the response. */
  readonly profile?: boolean;
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

/** Timeout, cancellation and metadata of a call, as its protocol transmits them. */
export interface CallContext {
  /**
   * How long the caller waits from now on; undefined when it does not say. @throws CubeError
   * INVALID_ARGUMENT
   */
  timeoutMs(): number | undefined;
  readonly signal: CancelSignal;
  /**
   * Tells the caller beside the response that it is degraded, as a header or a trailer. Called
   * before the response is sent. A protocol without metadata says it in the response.
   */
  markDegraded(): void;
  /** The same for the variants of the request. @param text `name=variant, …` */
  markVariants(text: string): void;
  /** Whether the head of the request asks for a profile. @throws CubeError INVALID_ARGUMENT */
  wantsProfile(): boolean;
  /** Sends the profile beside the response. @param text JSON */
  sendProfile(text: string): void;
  /** The key for experiments in the head of the request. @throws CubeError INVALID_ARGUMENT */
  experimentKey(): string | undefined;
  /** The caller's W3C `traceparent`, not yet checked; read only while tracing is on. */
  traceparent(): string | undefined;
  /** When it is known before the body is parsed. */
  readonly priority?: number | undefined;
  /** When the head of the request arrived; undefined: with the call of `handlePrediction`. */
  readonly arrivedMs?: number | undefined;
  /** Who calls; absent: the process has no access control. */
  readonly grant?: CallGrant | undefined;
}

/** The part of the context that is known before the body is read. */
export type HeadContext = Pick<CallContext, 'timeoutMs' | 'priority' | 'grant' | 'arrivedMs'>;

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
      context.shadows.offer({ ...handled.shadowed, durationMs });
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
  return { ...(await predict(context, request, options, arrivedMs)), profile };
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
    const timings = { ...prediction.timings, lookupMicros };
    const summary = { ...counts, version, rowCount, timings };
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
 * HTTP: the headers `timeout-ms` and `hypercube-degraded`. The call is cancelled when its
 * connection closes before the response is sent.
 */
export function createHttpCallContext(
  { headers, raw, arrivedMs, grant }: Pick<HttpRequest, 'headers' | 'raw' | 'arrivedMs' | 'grant'>,
  priority?: number,
): CallContext {
  // A getter, because a controller and a listener for each request cost more than all reads of the
  // getter.
  const signal = {
    get aborted(): boolean {
      return raw.destroyed && !raw.writableFinished;
    },
  };
  return {
    timeoutMs: () => parseTimeoutHeader(headers['timeout-ms']),
    signal,
    priority,
    arrivedMs,
    grant,
    markDegraded() {
      // A request that was too slow has been answered with an error.
      if (!raw.headersSent) raw.setHeader(DEGRADED_KEY, 'true');
    },
    markVariants(text) {
      if (!raw.headersSent) raw.setHeader(EXPERIMENTS_KEY, text);
    },
    wantsProfile: () => readProfileFlag(headers[PROFILE_KEY]),
    sendProfile(text) {
      if (!raw.headersSent) raw.setHeader(PROFILE_KEY, text);
    },
    experimentKey: () => checkExperimentKey(headers[EXPERIMENT_KEY], EXPERIMENT_KEY),
    traceparent: () => String(headers['traceparent'] ?? ''),
  };
}

/** HTTP: the part of the context that is known from the head of the request. */
export function createHeadContext(
  { headers, grant, arrivedMs }: Pick<HttpRequestHead, 'headers' | 'grant' | 'arrivedMs'>,
  priority?: number,
): HeadContext {
  const timeoutMs = (): number | undefined => parseTimeoutHeader(headers['timeout-ms']);
  return { timeoutMs, priority, grant, arrivedMs };
}

/** gRPC: its own deadline and cancellation, and the trailer `hypercube-degraded`. */
export function createGrpcCallContext(call: GrpcCall, priority?: number): CallContext {
  const timeoutMs = toTimeoutMs(call.remainingMs);
  return {
    timeoutMs: () => timeoutMs,
    signal: call,
    priority,
    grant: call.grant,
    markDegraded: () => call.setTrailer(DEGRADED_KEY, 'true'),
    markVariants: (text) => call.setTrailer(EXPERIMENTS_KEY, text),
    wantsProfile: () => readProfileFlag(call.getMetadata(PROFILE_KEY)),
    sendProfile: (text) => call.setTrailer(PROFILE_KEY, text),
    experimentKey: () => checkExperimentKey(call.getMetadata(EXPERIMENT_KEY), EXPERIMENT_KEY),
    traceparent: () => call.getMetadata('traceparent'),
  };
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
    checkAdmission(context, protocol, { timeoutMs: () => toTimeoutMs(remainingMs), grant }, find);
  };
}

function toTimeoutMs(remainingMs: number): number | undefined {
  return Number.isFinite(remainingMs) ? Math.min(remainingMs, TIMEOUT_MS_MAX) : undefined;
}

/**
 * baidu_std: `timeout_ms` of the request meta; 0 means that the caller did not set it. Responses
 * have no metadata: err_msg says that they are degraded.
 */
export function createBaiduCallContext(
  metaTimeoutMs: number,
  signal: CancelSignal,
  grant?: CallGrant,
  traceparent?: string,
): CallContext {
  const timeoutMs = metaTimeoutMs > 0 ? Math.min(metaTimeoutMs, TIMEOUT_MS_MAX) : undefined;
  return {
    timeoutMs: () => timeoutMs,
    signal,
    markDegraded: () => undefined,
    markVariants: () => undefined,
    // Its profile is `profile_time` of the response.
    wantsProfile: () => false,
    sendProfile: () => undefined,
    experimentKey: () => undefined,
    traceparent: () => traceparent,
    grant,
  };
}

function formatVariants(assignments: ExperimentedRequest['assignments']): string {
  return assignments.map(({ experiment, variant }) => `${experiment}=${variant}`).join(', ');
}

function parseTimeoutHeader(header: string | string[] | undefined): number | undefined {
  if (header === undefined) return undefined;
  const value = typeof header === 'string' && /^\d{1,6}$/.test(header) ? Number(header) : 0;
  if (value >= 1 && value <= TIMEOUT_MS_MAX) return value;
  const shown = JSON.stringify(header);
  throw new CubeError(
    'INVALID_ARGUMENT',
    `header timeout-ms: expected an integer in 1..${TIMEOUT_MS_MAX}, got ${shown}`,
  );
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
