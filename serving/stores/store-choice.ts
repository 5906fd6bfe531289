/**
 * The configuration of a model's store: plain data from which `openStore` (open-store.ts) opens it.
 * docs/stores.md says when to use which store.
 */

import type { CallPolicy } from '../../lib/client/call-policy.ts';
import type { CredentialFiles } from '../../lib/rpc/credentials.ts';

/** The names in flags and files. */
export const STORE_KINDS = ['none', 'memory', 'local', 'remote', 'redis'] as const;
export type StoreKind = (typeof STORE_KINDS)[number];

/** A cache of rows in front of a store that is reached over the network. */
export interface HotRowsChoice {
  /** The most memory that it may take, bookkeeping included. */
  readonly bytes: number;
}

/** No tables: the embeddings are in the graph. */
export interface NoneChoice {
  readonly kind: 'none';
}

/** Tables in this process's memory. */
export interface MemoryChoice {
  readonly kind: 'memory';
  /** Where layers of a remote repository are fetched to. */
  readonly dataDir?: string;
  /**
   * The most memory for the tables of all versions together. Default: a share of the machine's
   * memory.
   */
  readonly memoryBytes?: number;
  /** Keeps versions that do not fit on disk, in `dataDir`; set unless the user asked for memory. */
  readonly fallBackToDisk?: boolean;
}

/** An embedded database on this machine's disk. */
export interface LocalChoice {
  readonly kind: 'local';
  readonly dataDir: string;
}

/** The shards of a fleet. */
export interface RemoteChoice {
  readonly kind: 'remote';
  /** A fleet.json or a cube.conf; the content decides which. */
  readonly fleetPath: string;
  /** For every bundle; its fields override those of a cube.conf. */
  readonly policy?: CallPolicy;
  /** Whether every request and response carries a checksum. Default true. */
  readonly checksum?: boolean;
  readonly hotRows?: HotRowsChoice;
  /** API key and TLS of lookups. Default: neither. */
  readonly credentials?: CredentialFiles;
}

/** Redis or Valkey, one server or a Cluster. */
export interface RedisChoice {
  readonly kind: 'redis';
  /**
   * `redis[s]://[user[:password]@]host:port[/database]`; several addresses are nodes of one
   * Cluster.
   */
  readonly urls: readonly string[];
  readonly user?: string;
  /** A file with only the password, which keeps it out of command lines. */
  readonly passwordFile?: string;
  /** Whether the servers are a Cluster. Default: true for several addresses. */
  readonly cluster?: boolean;
  /** Whether `prepare` loads missing layers. Default false: `serving load-redis` does. */
  readonly fill?: boolean;
  readonly hotRows?: HotRowsChoice;
}

export type StoreChoice = NoneChoice | MemoryChoice | LocalChoice | RemoteChoice | RedisChoice;
