/**
 * The interface of protocols: rows are encoded before the clock starts and may be sent repeatedly.
 */
import type { RequestProfile } from '../../../lib/core/request-profile.ts';
import type { Credentials } from '../../../lib/rpc/credentials.ts';
import type { Variants } from '../../../proto/ctr.ts';
import type { ModelShape } from './model-shape.ts';

export interface PredictionResponse {
  /** Empty if the protocol does not report it. */
  readonly version: string;
  /** Version of the tables; must equal `version`. */
  readonly tablesVersion: string;
  /** One for each row. */
  readonly probabilities: ArrayLike<number>;
  readonly unseen: number;
  readonly unavailable: number;
  readonly degraded: boolean;
  /** Absent if the request was not part of experiments. */
  readonly variants?: Variants;
  /** Present if the request asked for it. */
  readonly profile?: RequestProfile;
}

/** Values for protocols without versions and counts. */
export const NO_METADATA: Omit<
  PredictionResponse,
  'probabilities' | 'degraded' | 'variants' | 'profile'
> = {
  version: '',
  tablesVersion: '',
  unseen: 0,
  unavailable: 0,
};

/** Sends a request. @throws CubeError */
export type SendRequest = () => Promise<PredictionResponse>;

export interface ProtocolClient {
  /**
   * @param experimentKey sent with the request; '' is none
   * @returns the request with rows start … end (exclusive)
   */
  prepareRequest(start: number, end: number, experimentKey: string): SendRequest;
  close(): void;
}

/** Options that every protocol client needs. */
export interface ProtocolClientOptions {
  /** `http://host:port` or `https://…`. */
  readonly url: string;
  readonly shape: ModelShape;
  readonly connectionsMax: number;
  /** API key and certificates. */
  readonly credentials?: Credentials | undefined;
  readonly timeoutMs: number;
  /** Ask for the profile of each request. Default false. */
  readonly profile?: boolean;
}
