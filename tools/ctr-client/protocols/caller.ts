/** A protocol as the client uses it: a batch of rows becomes a request before the clock starts, and is sent as often as need be. */
import type { ModelShape } from './model-shape.ts';

export interface Answer {
  /** Empty where the protocol does not say. */
  readonly version: string;
  /** Of the tables; the same as `version`, or something is wrong. */
  readonly tablesVersion: string;
  /** One a row. */
  readonly probabilities: ArrayLike<number>;
  readonly unseen: number;
  readonly unavailable: number;
  readonly degraded: boolean;
}

/** What some protocols do not tell. */
export const UNTOLD: Omit<Answer, 'probabilities'> = {
  ...{ version: '', tablesVersion: '' },
  ...{ unseen: 0, unavailable: 0, degraded: false },
};

/** Sends a request. @throws CubeError */
export type Send = () => Promise<Answer>;

export interface Caller {
  /** @returns the request for rows start … end */
  prepare(start: number, end: number): Send;
  close(): void;
}

/** What callers are opened with. */
export interface CallTarget {
  /** `http://host:port` or `https://…`. */
  readonly url: string;
  readonly shape: ModelShape;
  readonly connectionsMax: number;
  readonly timeoutMs: number;
}
