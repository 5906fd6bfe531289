/** What the processes send, as far as the page uses it. */

export type View =
  | 'fleet'
  | 'predict'
  | 'live'
  | 'pipeline'
  | 'versions'
  | 'rollout'
  | 'tables'
  | 'problems';

export interface Snapshot {
  readonly role: 'serving' | 'controller' | 'agent';
  readonly product: string;
  readonly pid: number;
  readonly startedMs: number;
  readonly views: readonly View[];
  readonly series: readonly string[];
  readonly history: {
    readonly times: readonly number[];
    readonly values: readonly (readonly (number | null)[])[];
  };
  readonly state: State;
}

export interface Warning {
  readonly level: 'warn' | 'error';
  readonly message: string;
  readonly detail: string;
  readonly count: number;
  readonly firstAt: string;
  readonly lastAt: string;
}

/** Fields of all processes; each has only some. */
export interface State {
  readonly warnings?: readonly Warning[];
  // serving
  readonly notReady?: string | null;
  readonly models?: readonly Model[];
  readonly stores?: readonly Store[];
  readonly versions?: readonly LoadedVersion[];
  readonly misses?: readonly SlotMisses[];
  readonly experiments?: readonly Experiment[];
  /** Who wrote the experiments of a repository that run, when and why. */
  readonly experimentLogs?: readonly ExperimentOrigin[];
  readonly experimentProblems?: readonly { model: string; problem: string }[];
  readonly pipeline?: Pipeline;
  readonly failures?: readonly { protocol: string; code: string; count: number }[];
  // agent and controller
  readonly bundles?: readonly Bundle[];
  readonly servers?: readonly Server[];
  readonly hosts?: readonly Host[];
  readonly findings?: readonly Finding[];
  /** Addresses of serving processes that the controller forwards to. */
  readonly servings?: readonly string[];
}

export interface Variant {
  readonly name: string;
  readonly weight: number;
  readonly model?: string;
  readonly channel?: string;
  readonly version?: string;
  /** Whether its version is loaded in this process. */
  readonly loaded: boolean;
}

export interface Experiment {
  readonly name: string;
  readonly model: string;
  readonly variants: readonly Variant[];
}

export interface ExperimentOrigin {
  readonly model: string;
  readonly seq: number;
  readonly at: string;
  readonly by: string;
  readonly reason: string;
}

export interface Channel {
  readonly channel: string;
  readonly active?: string;
  readonly activeSince?: string;
  readonly target?: string;
  readonly problem?: string;
  readonly unavailable?: string;
}

export interface Model extends Channel {
  readonly model: string;
  readonly channels: readonly Channel[];
  readonly loading?: string;
  readonly loadingStep?: string;
  readonly held: readonly string[];
  readonly failed: readonly { version: string; code: string; message: string }[];
  readonly unloaded: boolean;
}

export interface Store {
  readonly model: string;
  readonly kind: string;
  readonly circuitsOpen: number;
  readonly servers: readonly {
    readonly endpoint: string;
    readonly state: 'unknown' | 'answering' | 'failed';
    readonly requests: number;
    readonly failures: number;
    readonly latencyMs: number;
  }[];
}

export interface Table {
  readonly name: string;
  readonly dim: number;
  readonly dtype: string;
  readonly rows: number;
  readonly shardNum: number;
  readonly bytes: number;
  readonly layers: number;
}

export interface LoadedVersion {
  readonly model: string;
  readonly version: string;
  /** It takes tensors, not rows of features. */
  readonly isPlain: boolean;
  readonly tables: readonly Table[];
}

/** A graph of ops; counts since the start. */
export interface Pipeline {
  readonly name: string;
  /** Requests in progress. */
  readonly running: number;
  readonly ops: readonly {
    readonly name: string;
    /** Length of the longest path from the request. */
    readonly stage: number;
    /** Names of the ops that it reads; none for the request. */
    readonly inputs: readonly string[];
    readonly concurrency: number;
    readonly requests: number;
    readonly executions: number;
    readonly busyMs: number;
    readonly running: number;
    readonly queued: number;
  }[];
}

/** Lookups by slot since the version was loaded. */
export interface SlotMisses {
  readonly model: string;
  readonly version: string;
  readonly rows: number;
  readonly slots: readonly {
    readonly slot: string;
    readonly lookups: number;
    readonly unseen: number;
    readonly unavailable: number;
  }[];
}

export interface Server {
  readonly address: string;
  readonly shard?: number;
  readonly shardNum?: number;
  readonly answers: boolean;
  readonly error?: string;
  /** The newest since the process that shows it was started; it may answer again. */
  readonly lastError?: { readonly message: string; readonly at: string };
  readonly ready: boolean;
  readonly draining: boolean;
  readonly pid?: number;
  readonly usedBytes?: number;
  readonly budgetBytes?: number;
  readonly requestRate?: number;
  readonly bundles: readonly {
    readonly bundle: string;
    readonly active: string;
    readonly versions: readonly {
      readonly version: string;
      readonly rows: number;
      readonly bytes: number;
      /** Length of the longest chain; absent in older servers. */
      readonly layers?: number;
    }[];
  }[];
  readonly loading: readonly {
    bundle: string;
    version: string;
    /** 0 while it waits. */
    bytes?: number;
    loadedBytes?: number;
  }[];
  readonly failed: readonly { bundle: string; version: string; code: string; message: string }[];
}

export interface Host {
  readonly host: string;
  readonly answers: boolean;
  readonly freeBytes?: number;
  readonly transfers: readonly { version: string; bytes: number; arrivedBytes: number }[];
}

export interface Finding {
  readonly severity: 'error' | 'warning' | 'note';
  readonly where: string;
  readonly what: string;
  readonly todo?: string;
}

export interface Attribution {
  readonly at: string;
  readonly by: string;
  readonly reason: string;
}

export interface ChannelEntry extends Attribution {
  readonly seq: number;
  readonly version: string;
  readonly pinned?: boolean;
  readonly quarantines?: string;
  readonly lifts?: string;
}

/** Measurements of a version since it was loaded; shares as fractions of one. */
export interface Readings {
  readonly requests: number;
  readonly errorRate: number;
  readonly unavailable: number;
  readonly p99Ms: number;
  readonly unseenRise?: number;
  readonly scoreDrift?: number;
}

/** A gate that was started in the console; without an outcome it runs. */
export interface GateRun {
  readonly version: string;
  readonly by: string;
  readonly reason: string;
  readonly startedAt: string;
  readonly outcome?: { readonly verdict: 'pass' | 'fail' | 'error'; readonly summary: string };
}

export interface Rollout {
  readonly version: string;
  readonly state: string;
  readonly step: string;
  readonly why: string;
  readonly isBlocked: boolean;
  readonly readings: Readings | null;
  readonly entries: readonly { state: string; at: string; holder: string; reason: string }[];
  readonly replicas: readonly {
    address: string;
    holds: boolean;
    isActive: boolean;
    trouble: string;
  }[];
}

export interface BundleVersion {
  readonly version: string;
  readonly bytes: number;
  readonly rows: number;
  readonly tables: readonly Table[];
}

export interface Bundle {
  readonly bundle: string;
  readonly channels: readonly {
    readonly channel: string;
    /** The version that a rollback returns to. */
    readonly previous?: string;
    readonly history: readonly ChannelEntry[];
  }[];
  readonly versions: readonly BundleVersion[];
  readonly quarantined: readonly string[];
  /** The version that is staged. */
  readonly candidate?: string;
  /** Number of the newest report of each version that has one. */
  readonly gateReports: Readonly<Record<string, number>>;
  readonly gates: readonly GateRun[];
  readonly rollouts: readonly Rollout[];
  readonly policy?: {
    readonly channels: readonly { channel: string; holdMs: number }[];
    readonly gate: boolean;
    readonly watchMs: number;
    readonly limits: Readonly<Record<string, number>>;
  };
}
