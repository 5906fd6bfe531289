/**
 * Where a model's rows come from, as configuration says it: plain data that `openStore` (open-store.ts) makes a store of.
 * Which store when: docs/stores.md.
 */
import type { CallPolicy } from '../../lib/client/call-policy.ts';

/** As flags and files name them. */
export const STORE_KINDS = ['none', 'memory', 'local', 'remote', 'redis'] as const;
export type StoreKind = (typeof STORE_KINDS)[number];

/** A cache of rows in front of a store that is asked over the network. */
export interface HotRowsChoice {
  /** What it may hold, its bookkeeping included. */
  readonly bytes: number;
}

/** The graph has its embeddings inside: there are no tables. */
export interface NoneChoice {
  readonly kind: 'none';
}

/** The tables in this process's memory. */
export interface MemoryChoice {
  readonly kind: 'memory';
  /** Where layers that are not in a folder of this machine are fetched to. */
  readonly dataDir?: string;
  /** What the tables of all versions together may take. Default: a share of the machine's memory. */
  readonly memoryBytes?: number;
  /** Versions that do not fit are kept on disk, in `dataDir`: nobody said that they must be in memory. */
  readonly elseDisk?: boolean;
}

/** An embedded database on this machine's disk. */
export interface LocalChoice {
  readonly kind: 'local';
  readonly dataDir: string;
}

/** The shards of a fleet. */
export interface RemoteChoice {
  readonly kind: 'remote';
  /** A fleet.json, or a cube.conf: what is in it says which. */
  readonly fleetPath: string;
  /** For every bundle; what cube.conf says of a dict stands unless it is said here. */
  readonly policy?: CallPolicy;
  /** Every request and answer with a checksum. Default false. */
  readonly checksum?: boolean;
  readonly hotRows?: HotRowsChoice;
}

/** Redis or Valkey, one server or a Cluster. */
export interface RedisChoice {
  readonly kind: 'redis';
  /** `redis[s]://[user[:password]@]host:port[/database]`; several are nodes of one Cluster. */
  readonly urls: readonly string[];
  readonly user?: string;
  /** A file with the password alone, so that it stands in no command line. */
  readonly passwordFile?: string;
  /** Asks for a Cluster although one node is named. Default: when several are. */
  readonly cluster?: boolean;
  /** Loads what a version lacks when it is prepared. Default false: `serving load-redis` does. */
  readonly fill?: boolean;
  readonly hotRows?: HotRowsChoice;
}

export type StoreChoice = NoneChoice | MemoryChoice | LocalChoice | RemoteChoice | RedisChoice;

/**
 * Paddle Serving's `sparse_param_service_type`. Its LOCAL is an embedded database, its REMOTE a fleet of cube-servers.
 * @returns undefined for a name that it does not have
 */
export function storeKindOfPaddle(name: string): StoreKind | undefined {
  switch (name) {
    case 'NONE':
      return 'none';
    case 'LOCAL':
      return 'local';
    case 'REMOTE':
      return 'remote';
    default:
      return undefined;
  }
}
