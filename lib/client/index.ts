/**
 * The entry of the npm packages `hypercube` and `hypercube-client`. Its clients look up keys in a
 * fleet of cube-servers, seek in C++ cube-servers, and call serving processes. Documentation:
 * docs/client.md.
 */

export type { ErrorDetails } from '../core/error-details.ts';
export { CubeError, type ErrorCode } from '../core/errors.ts';
export { type Fleet, formatFleet, parseFleet, type Replica, type ShardMap } from '../core/fleet.ts';
export {
  type LookupGroup,
  type LookupSummary,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
  type StoredGroup,
  type StoredSummary,
  type ValueGroup,
  type Values,
  type ValuesSummary,
} from '../core/lookup-group.ts';
export {
  type LayerRef,
  type Manifest,
  parseManifest,
  type TableDtype,
  type TableRef,
} from '../core/manifest.ts';
export { createTensor, type PipelineTensor } from '../core/pipeline-tensor.ts';
export type { HashSpec, Slot } from '../core/slots.ts';
export { openRepository, type Repository } from '../repository/repository.ts';
export { type CredentialFiles, Credentials } from '../rpc/credentials.ts';
export type { CallPolicy, ConcurrencyLimitPolicy, LoadBalancer } from './call-policy.ts';
export { formatClientMetrics } from './client-metrics.ts';
export type { ClientCounters, ClientStats } from './client-stats.ts';
export type { ConnectionType } from './connections.ts';
export {
  CtrClient,
  type CtrClientOptions,
  type CtrClientStats,
  type CtrScore,
  type ScoreOptions,
} from './ctr-client.ts';
export type {
  CtrCallOptions,
  CtrFeature,
  CtrKeyRow,
  CtrNamedRow,
  CtrPositionalRow,
  CtrPrediction,
  CtrRow,
  CtrRows,
} from './ctr-rows.ts';
export {
  CubeClient,
  type CubeClientOptions,
  type LoadedCheck,
  type LookupOptions,
} from './cube-client.ts';
export { CubeConf, type CubeConfOptions } from './cube-conf.ts';
export {
  CubeDictClient,
  type CubeDictClientOptions,
  type SeekOptions,
  type SeekResult,
  type SeekRows,
} from './dict-client.ts';
export { FleetFile, type FleetFileOptions } from './fleet-file.ts';
export type { RouteOptions } from './fleet-routes.ts';
export { packKeys } from './pack-keys.ts';
export {
  type PaddleCallOptions,
  PaddleClient,
  type PaddleClientOptions,
  type PaddleFeed,
  type PaddleResult,
  type TaggedResult,
} from './paddle-client.ts';
export {
  type PipelineCallOptions,
  PipelineClient,
  type PipelineClientOptions,
  type PipelineResult,
  type PipelineValue,
} from './pipeline-client.ts';
export type {
  DebugResponse,
  FeedValue,
  FetchedTensor,
  InferenceCall,
  InferenceCallback,
  InferenceOptions,
  InferenceOutput,
  InferenceRequest,
  InferenceResponse,
  Predictor,
} from './predictor.ts';
export { PredictorApi, type PredictorApiOptions, type VariantStats } from './predictor-api.ts';
export type { IgnoredField } from './predictors-conf.ts';
export type { ClientLogger, ReplicaStats } from './replica.ts';
export type { SeekSummary } from './seek-call.ts';
export type { ServiceProtocol } from './service-transport.ts';
