/**
 * Answers copies of requests by another version, here or in another process, and compares the
 * scores. Copies have the lowest priority, are dropped when more than a few wait or the engine is
 * busy, and are never repeated.
 */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import type { AnsweredCopy, Shadow, ShadowTarget } from '../../lib/core/shadow.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { GraphCall, GraphPrediction } from '../engine/loaded-graph.ts';
import { isTensorModel, type LoadedVersion } from '../engine/loaded-version.ts';
import type { Prediction, PredictOptions } from '../engine/prediction.ts';
import type { Predictor } from '../engine/predictor.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import { type Models, requireBundle } from './model-registry.ts';
import { type OutputValues, pairOutputs, toOutputValues } from './output-values.ts';
import type { ShadowAnswer, ShadowEndpoint } from './shadow-endpoint.ts';
import type { Traffic } from './traffic.ts';

/** Copies that wait or run at a time; each keeps the rows of its request in memory. */
const PENDING_MAX = 16;
/** The same for a shadow that did not answer its last copy: more would only cost time. */
const SILENT_PENDING_MAX = 1;
const NO_ANSWER: ReadonlySet<ShadowOutcome> = new Set(['DEADLINE_EXCEEDED', 'UNAVAILABLE']);
const LOWEST_PRIORITY = 2;
/** A copy that would wait for a larger share of its timeout is dropped. */
const WAIT_SHARE_MAX = 0.5;

interface AnsweredRequest {
  /** The model that the request named. */
  readonly model: string;
  readonly durationMs: number;
}

interface ShadowedRows extends AnsweredRequest {
  readonly bundle: LoadedBundle;
  readonly rows: FeatureRows | KeyedRows;
  readonly prediction: Prediction;
}

interface ShadowedTensors extends AnsweredRequest {
  readonly graph: TensorModel;
  readonly call: GraphCall;
  readonly answer: GraphPrediction;
}

/** An answered request for a bundle or a plain model. */
export type ShadowedRequest = ShadowedRows | ShadowedTensors;

/** What became of a copy. */
export type ShadowOutcome = 'OK' | 'dropped' | ErrorCode;

export interface ShadowResult {
  readonly shadow: string;
  readonly outcome: ShadowOutcome;
  /** The model that the request named, and its bundle and version. */
  readonly model: string;
  readonly bundle: string;
  readonly against: string;
  /** The version that answered the copy; undefined: not known. */
  readonly version: string | undefined;
  /** Scores and times of the request and of its copy; absent unless the copy was answered. */
  readonly answers?: AnsweredCopy;
}

export interface ShadowsOptions {
  readonly traffic: { current(): Traffic };
  readonly models: Models;
  readonly predictor: Pick<Predictor, 'predict'>;
  readonly clock: Clock;
  /** The click probability of each row. */
  readonly toScores: (prediction: Prediction, bundle: LoadedBundle) => Float32Array;
  readonly onResult: (result: ShadowResult) => void;
}

/** What both sides answered, value by value. */
type ComparedAnswer = ShadowAnswer<readonly [ArrayLike<number>, ArrayLike<number>]>;

/** Most processes have no shadows on others: the client is loaded when it is needed. */
async function openEndpoint(endpoint: string, target: ShadowTarget): Promise<ShadowEndpoint> {
  const { ShadowEndpoint } = await import('./shadow-endpoint.ts');
  return new ShadowEndpoint(endpoint, PENDING_MAX, target);
}

function isEndpoint(target: ShadowEndpoint | LoadedVersion): target is ShadowEndpoint {
  return 'predictTensors' in target;
}

export class Shadows {
  readonly #options: ShadowsOptions;
  /** By endpoint and its credentials. */
  readonly #remotes = new Map<string, Promise<ShadowEndpoint>>();
  /** Copies that wait or run, of all shadows and by shadow. */
  #pending = 0;
  readonly #pendingByName = new Map<string, number>();
  /** Shadows that did not answer their last copy. */
  readonly #silent = new Set<string>();

  constructor(options: ShadowsOptions) {
    this.#options = options;
  }

  /** Copies a request to the shadows of its model; returns at once and never throws. */
  offer(request: ShadowedRequest): void {
    for (const shadow of this.#options.traffic.current().shadows) {
      if (shadow.model !== request.model || Math.random() >= shadow.share) continue;
      const { name } = shadow;
      const pending = this.#pendingByName.get(name) ?? 0;
      const max = this.#silent.has(name) ? SILENT_PENDING_MAX : PENDING_MAX;
      if (this.#pending >= PENDING_MAX || pending >= max) {
        this.#report(shadow, request, 'dropped');
        continue;
      }
      this.#pending++;
      this.#pendingByName.set(name, pending + 1);
      // After the answer of the request is written.
      setImmediate(() => void this.#run(shadow, request));
    }
  }

  /** Ends the calls to other processes. */
  close(): void {
    for (const remote of this.#remotes.values()) {
      void remote.then((endpoint) => endpoint.close()).catch(() => undefined);
    }
  }

  async #run(shadow: Shadow, request: ShadowedRequest): Promise<void> {
    const startMs = this.#options.clock.nowMs();
    let version: string | undefined;
    try {
      const { endpoint } = shadow.target;
      const target =
        endpoint === undefined ? this.#findTarget(shadow) : await this.#open(endpoint, shadow);
      if (!isEndpoint(target)) {
        ({ version } = target);
        const waitMs = target.batcher.estimateWaitMs(LOWEST_PRIORITY);
        if (waitMs > WAIT_SHARE_MAX * shadow.timeoutMs) {
          this.#report(shadow, request, 'dropped', version);
          return;
        }
      }
      const answer =
        'graph' in request
          ? await this.#answerTensors(shadow, target, request)
          : await this.#answerRows(shadow, target, request);
      if (answer === undefined) {
        this.#report(shadow, request, 'dropped', version);
        return;
      }
      const [first, second] = answer.scores;
      this.#report(shadow, request, 'OK', answer.version, {
        primary: { durationMs: request.durationMs, scores: first },
        shadow: { durationMs: this.#options.clock.nowMs() - startMs, scores: second },
      });
    } catch (error) {
      this.#report(shadow, request, CubeError.from(error).code, version);
    } finally {
      this.#end(shadow);
    }
  }

  #end({ name }: Shadow): void {
    this.#pending--;
    const left = (this.#pendingByName.get(name) ?? 1) - 1;
    if (left === 0) this.#pendingByName.delete(name);
    else this.#pendingByName.set(name, left);
  }

  /** @returns the scores of the request and of its copy; undefined: too large */
  async #answerRows(
    shadow: Shadow,
    target: ShadowEndpoint | LoadedVersion,
    { bundle, rows, prediction }: ShadowedRows,
  ): Promise<ComparedAnswer | undefined> {
    const { predictor, toScores } = this.#options;
    const first = toScores(prediction, bundle);
    if (isEndpoint(target)) {
      const answer = await target.predictRows(shadow, rows, bundle.features);
      return answer && { version: answer.version, scores: [first, answer.scores] };
    }
    const version = requireBundle(target);
    requireSameFeatures(bundle, version);
    const second = await predictor.predict(version, rows, this.#limit(shadow));
    return { version: version.version, scores: [first, toScores(second, version)] };
  }

  async #answerTensors(
    shadow: Shadow,
    target: ShadowEndpoint | LoadedVersion,
    { model, call, answer: { outputs } }: ShadowedTensors,
  ): Promise<ComparedAnswer | undefined> {
    const first = outputs.map(toOutputValues);
    let version: string;
    let second: readonly OutputValues[];
    if (isEndpoint(target)) {
      const answer = await target.predictTensors(shadow, model, call);
      if (answer === undefined) return undefined;
      ({ version, scores: second } = answer);
    } else {
      if (!isTensorModel(target)) {
        throw new CubeError('UNSUPPORTED', `${target.name} takes rows of features, not tensors`);
      }
      ({ version } = target);
      second = (await target.predict(call, this.#limit(shadow))).outputs.map(toOutputValues);
    }
    return { version, scores: pairOutputs(first, second) };
  }

  #limit({ timeoutMs }: Shadow): PredictOptions {
    return { deadlineMs: this.#options.clock.nowMs() + timeoutMs, priority: LOWEST_PRIORITY };
  }

  /** @throws CubeError when a file of the credentials is unreadable or invalid */
  #open(endpoint: string, { target }: Shadow): Promise<ShadowEndpoint> {
    const key = JSON.stringify([endpoint, target.apiKeyFile, target.tlsCa]);
    let remote = this.#remotes.get(key);
    if (remote === undefined) {
      remote = openEndpoint(endpoint, target);
      this.#remotes.set(key, remote);
      // The next copy reads the credentials again.
      remote.catch(() => this.#remotes.delete(key));
    }
    return remote;
  }

  #findTarget({ model, target: { channel, version, ...other } }: Shadow): LoadedVersion {
    return this.#options.models.find(other.model ?? model, {
      ...(channel !== undefined && { label: channel }),
      ...(version !== undefined && { version }),
    });
  }

  #report(
    { name: shadow }: Shadow,
    request: ShadowedRequest,
    outcome: ShadowOutcome,
    version?: string,
    answers?: AnsweredCopy,
  ): void {
    if (NO_ANSWER.has(outcome)) this.#silent.add(shadow);
    else if (outcome !== 'dropped') this.#silent.delete(shadow);
    const loaded = 'graph' in request ? request.graph : request.bundle;
    this.#options.onResult({
      shadow,
      outcome,
      model: request.model,
      bundle: loaded.name,
      against: loaded.version,
      version,
      ...(answers !== undefined && { answers }),
    });
  }
}

const comparedFeatures = new WeakMap<LoadedBundle, WeakMap<LoadedBundle, boolean>>();

/**
 * Parsed rows fit only versions that hash and scale alike. @throws CubeError UNSUPPORTED
 */
function requireSameFeatures(primary: LoadedBundle, shadow: LoadedBundle): void {
  const known = comparedFeatures.get(primary) ?? new WeakMap<LoadedBundle, boolean>();
  comparedFeatures.set(primary, known);
  let isSame = known.get(shadow);
  if (isSame === undefined) {
    isSame = toText(primary) === toText(shadow);
    known.set(shadow, isSame);
  }
  if (isSame) return;
  throw new CubeError(
    'UNSUPPORTED',
    `${primary.name} and ${shadow.name} hash or scale features differently`,
  );
}

function toText({ features: { hash, slots, dense } }: LoadedBundle): string {
  return JSON.stringify([hash, slots, dense], (_key, value) =>
    typeof value === 'bigint' ? `${value}` : value,
  );
}
