/**
 * The invariants that must hold after every write to the repository, and statistics of the writes.
 */
import { parseManifest } from '../../lib/core/manifest.ts';
import { CANDIDATE_CHANNEL, canTransition, type RolloutState } from '../../lib/core/rollout.ts';
import { layerPath, parseSeq } from '../../lib/repository/layout.ts';
import { BUNDLE } from './host-disk.ts';
import type { MemoryStore, StoreObserver, Writer } from './memory-store.ts';
import type { World } from './world.ts';

/** What the simulation knows and no process can ask. */
interface Facts {
  /** Whether every replica has ever loaded the version. */
  readonly isStaged: (version: string) => boolean;
  /** Whether the version is damaged in the repository. */
  readonly isDamaged: (version: string) => boolean;
  /** Whether the version has served in some process. */
  readonly hasServed: (version: string) => boolean;
  readonly store: () => MemoryStore;
}

interface Pointer {
  readonly seq: number;
  readonly version: string;
  readonly pinned?: boolean;
  readonly quarantines?: string;
  readonly reason: string;
  readonly atCall: number;
}

interface State {
  readonly seq: number;
  readonly state: RolloutState;
  readonly reason: string;
}

export class Invariants implements StoreObserver {
  readonly pointers: Map<string, Pointer> = new Map();
  readonly rollouts: Map<string, State> = new Map();
  /** Number of transitions, by "from>to". */
  readonly transitions: Map<string, number> = new Map();
  /** Quarantined versions, with the world's call count at the time. */
  readonly quarantined: Map<string, number> = new Map();
  readonly #world: World;
  /** Versions recorded as served, with the world's call count at the time. */
  readonly #served = new Map<string, number>();
  /** All versions that each channel has pointed to. */
  readonly #past = new Map<string, Set<string>>();
  readonly #facts: Facts;

  constructor(world: World, facts: Facts) {
    this.#world = world;
    this.#facts = facts;
  }

  put(path: string, bytes: Uint8Array, by: Writer): void {
    const [, kind, name = '', file = ''] = path.split('/');
    const seq = parseSeq(file) ?? 0;
    if (kind === 'quarantine') this.#quarantine(name.replace(/\.json$/, ''));
    const served = /^(.+)\.served\.json$/.exec(kind === 'outcomes' ? name : '')?.[1];
    if (served !== undefined && !this.#served.has(served)) {
      this.#served.set(served, this.#world.calls);
    }
    if (kind === 'channels') this.#move(name, { ...parse<Pointer>(bytes), seq }, by);
    if (kind === 'rollouts' && seq > 0) this.#enter(name, { ...parse<State>(bytes), seq }, by);
    if (path.endsWith('/manifest.json')) this.#world.record(by.name, `published ${name}`);
  }

  removed(path: string, by: Writer): void {
    const [, kind, version = ''] = path.split('/');
    if (kind === 'layers') {
      const owner = this.#manifests().find(({ layers }) => layers.includes(path));
      this.#world.require(owner === undefined, 'no published layer is removed', () => {
        return `${by.name} removes ${path}, which ${owner?.version} names`;
      });
    }
    if (!path.endsWith('/manifest.json')) return;
    for (const [channel, { version: wanted, atCall }] of this.pointers) {
      // Activating a version while it is removed is allowed: it was neither desired nor recent
      // (docs/adr/0019).
      const isKept = wanted === version && atCall < by.decidedAtCall;
      this.#world.require(!isKept, 'no wanted version is removed', () => {
        return `${by.name} removes ${version}, which ${channel} points to`;
      });
    }
  }

  /** Call after a garbage collection: every object must belong to a version. */
  requireNoOrphans(): void {
    const reached = new Set(this.#manifests().flatMap(({ layers }) => layers));
    for (const path of this.#facts.store().objects.keys()) {
      const isOrphan =
        (path.startsWith(`${BUNDLE}/layers/`) && !reached.has(path)) ||
        /^[^/]+\/(publishing|gc)\//.test(path);
      this.#world.require(!isOrphan, 'nothing is left over', () => path);
    }
  }

  #manifests(): { version: string; layers: string[] }[] {
    return [...this.#facts.store().objects].flatMap(([path, { bytes }]) => {
      const [, kind, version = '', file] = path.split('/');
      if (kind !== 'versions' || file !== 'manifest.json') return [];
      const { tables } = parseManifest(new TextDecoder().decode(bytes), path);
      const layers = tables.flatMap(({ name, shards }) =>
        shards.flat().map(({ contentId }) => layerPath(BUNDLE, name, contentId)),
      );
      return [{ version, layers }];
    });
  }

  #quarantine(version: string): void {
    if (!this.quarantined.has(version)) this.quarantined.set(version, this.#world.calls);
  }

  #move(channel: string, entry: Omit<Pointer, 'atCall'>, by: Writer): void {
    const world = this.#world;
    const { seq, version, pinned = false, quarantines, reason } = entry;
    const before = this.pointers.get(channel);
    world.record(by.name, `${channel} ${seq}: ${version}${pinned ? ' pinned' : ''} (${reason})`);
    const text = (): string => `${by.name} writes entry ${seq} of ${channel}: ${version}`;
    world.require(seq === (before?.seq ?? 0) + 1, 'a pointer log has no gaps', text);
    const leavesPin = before?.pinned === true && (version !== before.version || pinned);
    world.require(!leavesPin, 'nobody moves a pinned channel', text);
    const isBack = version !== before?.version && this.#wasBad(version, by);
    world.require(!isBack, 'a quarantined version never returns', text);
    const isMove = by.name.startsWith('controller') && reason.startsWith('rollout of ');
    const isHeld = channel === CANDIDATE_CHANNEL || !isMove || this.#facts.isStaged(version);
    world.require(isHeld, 'a rollout points to what is staged', text);
    const past = this.#past.get(channel) ?? new Set();
    if (quarantines !== undefined) {
      const hasTarget = [...past].some((candidate) =>
        this.#isKnownTarget(candidate, quarantines, by),
      );
      const isProven = !hasTarget || this.#facts.hasServed(version);
      world.require(isProven, 'a rollback goes to a version that has served', text);
    }
    this.#past.set(channel, past.add(version));
    this.pointers.set(channel, { ...entry, atCall: world.calls });
    if (quarantines !== undefined) this.#quarantine(quarantines);
  }

  /** The writer could know that the version has served and may serve. */
  #isKnownTarget(version: string, left: string, by: Writer): boolean {
    const servedAt = this.#served.get(version) ?? Number.POSITIVE_INFINITY;
    return version !== left && servedAt < by.decidedAtCall && !this.quarantined.has(version);
  }

  /** Quarantined before the writer began to decide. */
  #wasBad(version: string, by: Writer): boolean {
    return (this.quarantined.get(version) ?? Number.POSITIVE_INFINITY) < by.decidedAtCall;
  }

  #enter(version: string, entry: State, by: Writer): void {
    const world = this.#world;
    const before = this.rollouts.get(version);
    world.record(by.name, `rollout of ${version} ${entry.seq}: ${entry.state}`);
    const text = (): string => `${by.name}: ${version} from ${before?.state} to ${entry.state}`;
    world.require(entry.seq === (before?.seq ?? 0) + 1, 'a rollout log has no gaps', text);
    world.require(canTransition(before?.state, entry.state), 'states follow each other', text);
    const isFound = entry.reason.startsWith('its source is damaged');
    const isGuess = isFound && !this.#facts.isDamaged(version);
    world.require(!isGuess, 'host faults quarantine no version', text);
    const transition = `${before?.state ?? ''}>${entry.state}`;
    this.transitions.set(transition, (this.transitions.get(transition) ?? 0) + 1);
    this.rollouts.set(version, entry);
  }
}

function parse<T>(bytes: Uint8Array): T {
  return JSON.parse(new TextDecoder().decode(bytes)) as T;
}
