/**
 * What happened to the versions of a bundle: the processes that use them record that a version has
 * served, or that it could not be loaded. A rollback goes to a version that has served. A record
 * never changes, and a version may have both: it failed on one machine and served on another.
 * Records are not signed: they only choose among versions that channels have pointed to.
 */
import type { CubeError } from '../core/errors.ts';
import { NAME_PATTERN } from '../core/names.ts';
import type { Clock } from '../platform/clock.ts';
import type { Backend } from './backend.ts';
import { outcomePath, outcomesFolder } from './layout.ts';
import { putEntry } from './signed-entry.ts';

const OUTCOMES = ['served', 'failed'] as const;
export type Outcome = (typeof OUTCOMES)[number];

/** The versions that have a record, by outcome. */
export type VersionOutcomes = Readonly<Record<Outcome, ReadonlySet<string>>>;

export const NO_OUTCOMES: VersionOutcomes = { served: new Set(), failed: new Set() };

/** In stores that cannot list, only this many of a channel's newest versions are probed. */
const PROBES_MAX = 8;
/** Reads of a channel that one round of probes answers. */
const READS_PER_PROBE = 30;
const FILE_PATTERN = /^(.+)\.(served|failed)\.json$/;
const REASON_LENGTH_MAX = 2_000;

/** @returns false if the outcome was recorded before. @throws CubeError UNSUPPORTED if read-only */
export function recordOutcome(
  { backend, clock }: { backend: Backend; clock: Clock },
  { bundle, version }: { bundle: string; version: string },
  outcome: Outcome,
  { by, reason }: { by: string; reason: string },
): Promise<boolean> {
  const path = outcomePath(bundle, version, outcome);
  const entry = { at: clock.isoTime(), by, reason: reason.slice(0, REASON_LENGTH_MAX) };
  return putEntry(backend, path, entry);
}

export class OutcomeReader {
  readonly #backend: Backend;
  /** The last probes of a store that cannot list, by channel folder. */
  readonly #probed = new Map<string, Probes>();

  constructor(backend: Backend) {
    this.#backend = backend;
  }

  /**
   * All outcomes of the bundle; if the store cannot list, those of a channel's newest versions.
   * @param versions of the channel, newest first
   */
  async read(
    bundle: string,
    channel: string,
    versions: readonly string[],
  ): Promise<VersionOutcomes> {
    if (!this.#backend.canList) return this.#readByProbing(bundle, channel, versions);
    const found = { served: new Set<string>(), failed: new Set<string>() };
    for (const name of await this.#backend.list(outcomesFolder(bundle))) {
      const [, version = '', outcome] = FILE_PATTERN.exec(name) ?? [];
      if (NAME_PATTERN.test(version)) found[outcome as Outcome].add(version);
    }
    return found;
  }

  /** Probes again when the channel has moved, and from time to time. */
  async #readByProbing(
    bundle: string,
    channel: string,
    versions: readonly string[],
  ): Promise<VersionOutcomes> {
    const key = `${bundle}/${channel}`;
    const newest = versions.slice(0, PROBES_MAX);
    const known = this.#probed.get(key);
    const isKnown = known?.newest.join() === newest.join() && known.readsLeft > 0;
    if (isKnown) {
      known.readsLeft -= 1;
      return known.outcomes;
    }
    const outcomes = { served: new Set<string>(), failed: new Set<string>() };
    for (const version of newest) {
      for (const outcome of OUTCOMES) {
        const size = await this.#backend.size(outcomePath(bundle, version, outcome));
        if (size !== undefined) outcomes[outcome].add(version);
      }
    }
    this.#probed.set(key, { newest, outcomes, readsLeft: READS_PER_PROBE });
    return outcomes;
  }
}

interface Probes {
  readonly newest: readonly string[];
  readonly outcomes: VersionOutcomes;
  /** Reads until the store is probed again. */
  readsLeft: number;
}

/**
 * Whether an error of a load tells something about the version: it will fail everywhere. Others are
 * faults of the host or of the fleet, and pass.
 */
export function isFaultOfVersion(error: CubeError): boolean {
  return ['CORRUPT', 'INVALID_ARGUMENT', 'UNSUPPORTED', 'INTERNAL'].includes(error.code);
}
