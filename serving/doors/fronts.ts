/**
 * The one port of a serving process, and what stands behind every door on it. A door is a protocol: it adds its routes to the
 * fronts, and answers each prediction through `answer` (answer.ts), so that admission, deadlines, counts and errors are the same
 * everywhere.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { ServerLimits } from '../../lib/core/limits.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ControlAccess } from '../../lib/rpc/control-access.ts';
import { GrpcFront } from '../../lib/rpc/grpc-front.ts';
import { HttpFront } from '../../lib/rpc/http-front.ts';
import { OnePortServer } from '../../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../../lib/rpc/rpc-routes.ts';
import type { Admission } from '../admission.ts';
import type { Prediction, Predictor } from '../engine/predictor.ts';
import type { Models } from '../models/models.ts';
import type { ServingMetrics } from '../serving-metrics.ts';
import type { Question } from './question.ts';

/** Where doors add what they answer. */
export interface Fronts {
  /** baidu_std. */
  readonly routes: RpcRoutes;
  readonly http: HttpFront;
  readonly grpc: GrpcFront;
}

/** What every door needs. */
export interface DoorContext {
  readonly models: Models;
  readonly predictor: Pick<Predictor, 'predict'>;
  readonly admission: Admission;
  readonly metrics: ServingMetrics;
  readonly logger: Logger;
  /** The deadline of a request that names none. */
  readonly timeoutMs: number;
  readonly clock: Clock;
  /** Who may load and unload models. */
  readonly access: ControlAccess;
  /** Told of each prediction; may not throw, and does not wait. */
  readonly onAnswered?: (question: Question<unknown>, prediction: Prediction) => void;
}

/** In proto/, for reflection. */
const PROTO_FILES: readonly string[] = ['ctr.proto', 'general-model.proto', 'oip.proto'];
const PATHS = 'POST /v1/ctr:predict, /v2/models/{model}/infer, GET /v2, /v1/status, /metrics';

export function createFronts(
  { models, admission, logger }: DoorContext,
  limits: ServerLimits,
): Fronts {
  const health = () =>
    models.status().map(({ model, active }) => ({ name: model, serving: active !== undefined }));
  const ready = (): boolean => whyNotReady({ models, admission }) === undefined;
  return {
    routes: new RpcRoutes(),
    http: new HttpFront(limits, logger, PATHS),
    grpc: new GrpcFront({ limits, logger, protoFiles: PROTO_FILES, ready, health }),
  };
}

/** Call once all doors are there. */
export function createPort(fronts: Fronts, limits: ServerLimits, logger: Logger): OnePortServer {
  return new OnePortServer({ ...fronts, limits, logger });
}

/** A process is ready when each of its models answers, but for those that somebody unloaded. @returns undefined when it is */
export function whyNotReady({
  models,
  admission,
}: Pick<DoorContext, 'models' | 'admission'>): string | undefined {
  if (admission.closed) return 'stopping';
  try {
    for (const { model, unloaded } of models.status()) if (!unloaded) models.find(model);
    return undefined;
  } catch (error) {
    return CubeError.from(error).message;
  }
}
