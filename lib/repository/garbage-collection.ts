/**
 * Garbage collection of one bundle: removes versions that are not needed, then objects that no
 * remaining version references. It runs beside publishers without a lock or a clock
 * (docs/adr/0019): a publisher first writes which objects it needs and then checks for a running
 * collection; a collection first writes that it runs and then reads what publishers wrote. It may
 * be killed at any point, and the next collection continues. A manifest that cannot be read keeps
 * the layers that it may name, and nothing else.
 */

import { randomUUID } from 'node:crypto';
import { CubeError, type ErrorCode } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { type Manifest, parseManifest } from '../core/manifest.ts';
import { isInProgress } from '../core/rollout.ts';
import type { Clock } from '../platform/clock.ts';
import { faultPoint } from '../platform/fault-point.ts';
import {
  getProcessIdentity,
  getProcessLiveness,
  readProcessIdentity,
} from '../platform/process-identity.ts';
import type { Backend, ObjectDeleter, StoredObject } from './backend.ts';
import { Channels } from './channels.ts';
import { ExperimentLog } from './experiment-log.ts';
import {
  collectionMarkPath,
  intentsFolder,
  layerPath,
  layersFolder,
  manifestPath,
  rolloutsFolder,
  versionsFolder,
} from './layout.ts';
import { MANIFEST_BYTES_MAX } from './published-manifest.ts';
import { type PublishedVersion, selectRetainedVersions } from './retention.ts';
import { RolloutLog } from './rollout-log.ts';
import { rethrowAsCorrupt } from './signed-entry.ts';

/** A publication that takes longer counts as killed. */
const INTENT_AGE_MAX_MS = 7 * 24 * 3_600_000;
/** A collection that takes longer counts as killed. */
const COLLECTION_AGE_MAX_MS = 3_600_000;
/** Removals between two checks that the mark is still of this collection. */
const OWNERSHIP_CHECK_INTERVAL = 100;
const COLLECTION_MARK_BYTES_MAX = 64 << 10;
/** Objects are listed one folder after another, so ages of equal times differ by the listing. */
const AGE_MARGIN_MS = 3_600_000;
/** Codes of a manifest that exists and that no attempt will read, also one of a newer release. */
const UNREADABLE_CODES: ReadonlySet<ErrorCode> = new Set(['CORRUPT', 'UNSUPPORTED', 'TOO_LARGE']);

export interface RetentionPolicy {
  /** The number of newest versions to keep, quarantined ones not counted; at least 1. */
  readonly keepVersions: number;
  /** Versions and objects younger than this are kept. */
  readonly keepMs: number;
}

export interface GarbageReport {
  /** Versions that were removed, or would be. */
  readonly versions: readonly string[];
  /** The other versions, and why they are kept. */
  readonly kept: readonly { readonly version: string; readonly why: string }[];
  readonly objects: number;
  readonly bytes: number;
  /** Manifests that cannot be read, and what is kept because they may name it. */
  readonly unreadable: readonly UnreadableManifest[];
  readonly keptForUnreadable: { readonly layers: number; readonly bytes: number };
}

/** A manifest of a version, or of a publication that may be in progress. */
export interface UnreadableManifest {
  /** Undefined for a publication. */
  readonly version: string | undefined;
  readonly path: string;
  readonly message: string;
  readonly ageMs: number;
}

interface GarbageContext {
  readonly backend: Backend;
  readonly clock: Clock;
}

export async function collectGarbage(
  context: GarbageContext,
  bundle: string,
  policy: RetentionPolicy,
  { by, dryRun }: { by: string; dryRun: boolean },
): Promise<GarbageReport> {
  const { deleter } = context.backend;
  if (deleter === undefined) {
    const { location } = context.backend;
    const text = `${location} is read-only; collect garbage in its folder or bucket`;
    throw new CubeError('UNSUPPORTED', text);
  }
  const collection = new GarbageCollection(context, deleter, bundle, policy);
  if (dryRun) return (await collection.plan()).report;
  await collection.begin(by);
  try {
    faultPoint('gc.begun');
    const plan = await collection.plan();
    await collection.remove(plan);
    return plan.report;
  } finally {
    await collection.end();
  }
}

/** The objects of a bundle. */
interface BundleContents {
  readonly layers: readonly StoredObject[];
  readonly rollouts: readonly StoredObject[];
  readonly intents: readonly StoredObject[];
  /** Manifests of publications that may be in progress. */
  readonly pendingManifests: readonly Manifest[];
  readonly unreadableIntents: readonly UnreadableManifest[];
  readonly versionFiles: readonly StoredObject[];
  readonly published: readonly PublishedVersion[];
}

interface CollectionPlan {
  readonly report: GarbageReport;
  readonly versionsToRemove: readonly string[];
}

class GarbageCollection {
  readonly #backend: Backend;
  readonly #clock: Clock;
  readonly #deleter: ObjectDeleter;
  readonly #bundle: string;
  readonly #policy: RetentionPolicy;
  /** Reads each entry of a log once, for all versions. */
  readonly #channels: Channels;
  readonly #id = randomUUID();

  constructor(
    { backend, clock }: GarbageContext,
    deleter: ObjectDeleter,
    bundle: string,
    policy: RetentionPolicy,
  ) {
    this.#backend = backend;
    this.#clock = clock;
    this.#deleter = deleter;
    this.#bundle = bundle;
    this.#policy = policy;
    const requireVersion = async (): Promise<void> => undefined;
    this.#channels = new Channels({ backend, keys: {}, clock, requireVersion });
  }

  /**
   * Writes the mark that a collection runs. The mark of a collection whose process has ended is
   * taken over: at once if that can be known, else after an hour.
   */
  async begin(by: string): Promise<void> {
    const path = collectionMarkPath(this.#bundle);
    const at = this.#clock.isoTime();
    const mark = { id: this.#id, at, by, process: getProcessIdentity() };
    const bytes = new TextEncoder().encode(`${JSON.stringify(mark)}\n`);
    if (await this.#backend.putIfAbsent(path, bytes)) return;
    const [other] = await this.#deleter.listObjects(`${this.#bundle}/gc`);
    if (
      other !== undefined &&
      (other.ageMs > COLLECTION_AGE_MAX_MS || (await this.#hasEnded(other)))
    ) {
      await this.#deleter.remove(path);
      if (await this.#backend.putIfAbsent(path, bytes)) return;
    }
    throw new CubeError(
      'CONFLICT',
      `another garbage collection of ${this.#bundle} is running ` +
        `(its owner: ${this.#backend.location}/${path}); wait for it; ` +
        'if it was killed on another host, remove that file or wait an hour',
    );
  }

  /** False if the mark cannot be read: then nothing is known. */
  async #hasEnded({ path }: StoredObject): Promise<boolean> {
    try {
      const text = new TextDecoder().decode(
        await this.#backend.read(path, COLLECTION_MARK_BYTES_MAX),
      );
      const mark = readProcessIdentity(JsonReader.parse(text, path).field('process'));
      return getProcessLiveness(mark) === 'gone';
    } catch {
      return false;
    }
  }

  async end(): Promise<void> {
    if (await this.#isOurs()) await this.#deleter.remove(collectionMarkPath(this.#bundle));
  }

  /** What would be removed now. */
  async plan(): Promise<CollectionPlan> {
    const contents = await this.#readContents();
    const retained = await this.#selectRetained(contents);
    const versionsToRemove = contents.published
      .map(({ version }) => version)
      .filter((version) => !retained.has(version));
    const { objects, ...unread } = await this.#listUnreferenced(
      contents,
      new Set(versionsToRemove),
    );
    const manifests = contents.versionFiles.filter(({ path }) =>
      versionsToRemove.some((version) => path === manifestPath(this.#bundle, version)),
    );
    const all = [...manifests, ...objects];
    const report = {
      versions: versionsToRemove,
      kept: [...retained].map(([version, why]) => ({ version, why })),
      objects: all.length,
      bytes: countBytes(all),
      ...unread,
    };
    return { report, versionsToRemove };
  }

  /** Removes manifests first: if killed, the next collection removes what only they referenced. */
  async remove({ versionsToRemove }: CollectionPlan): Promise<void> {
    const removed = new Set<string>();
    for (const version of versionsToRemove) {
      await this.#requireOurs();
      // A channel may have gone back to it while others were removed.
      if ((await this.#listReferenced()).has(version)) continue;
      if (await this.#removeManifest(version)) removed.add(version);
    }
    const { objects } = await this.#listUnreferenced(await this.#readContents(), removed);
    for (const [n, { path }] of objects.entries()) {
      if (n % OWNERSHIP_CHECK_INTERVAL === 0) await this.#requireOurs();
      await this.#deleter.remove(path);
      faultPoint('gc.object');
    }
  }

  /** Puts it back if a channel pointed to it at that moment. @returns whether it was removed */
  async #removeManifest(version: string): Promise<boolean> {
    const path = manifestPath(this.#bundle, version);
    const bytes = await this.#backend.read(path, MANIFEST_BYTES_MAX);
    await this.#deleter.remove(path);
    faultPoint('gc.manifest');
    if (!(await this.#listReferenced()).has(version)) return true;
    await this.#backend.putIfAbsent(path, bytes);
    return false;
  }

  /**
   * The order matters: objects that may be removed are listed before the references to them are
   * read. A publisher removes its intent after its manifest is in place, so reading intents first
   * and manifests second misses neither.
   */
  async #readContents(): Promise<BundleContents> {
    const layers = await this.#deleter.listObjects(layersFolder(this.#bundle));
    const rollouts = await this.#deleter.listObjects(rolloutsFolder(this.#bundle));
    const intents = await this.#deleter.listObjects(intentsFolder(this.#bundle));
    const pendingManifests: Manifest[] = [];
    const unreadableIntents: UnreadableManifest[] = [];
    for (const intent of intents) {
      if (intent.ageMs > INTENT_AGE_MAX_MS) continue;
      const manifest = await this.#readManifest(intent, undefined, unreadableIntents);
      if (manifest !== undefined) pendingManifests.push(manifest);
    }
    const versionFiles = await this.#deleter.listObjects(versionsFolder(this.#bundle));
    return {
      layers,
      rollouts,
      intents,
      pendingManifests,
      unreadableIntents,
      versionFiles,
      published: this.#listPublished(versionFiles),
    };
  }

  /**
   * An unreadable manifest may name any layer that was written before it. One of a publication in
   * progress may name any layer at all, since it is written first.
   * @param removed versions whose manifests are removed, or would be
   */
  async #listUnreferenced(
    contents: BundleContents,
    removed: ReadonlySet<string>,
  ): Promise<
    Pick<GarbageReport, 'unreadable' | 'keptForUnreadable'> & { objects: StoredObject[] }
  > {
    const { layers, intents, pendingManifests, published, versionFiles } = contents;
    const referenced = new Set<string>();
    for (const manifest of pendingManifests) addReferencedLayers(manifest, referenced);
    const remaining = published
      .map(({ version }) => version)
      .filter((version) => !removed.has(version));
    const found = [...contents.unreadableIntents];
    for (const version of remaining) {
      const path = manifestPath(this.#bundle, version);
      const file = versionFiles.find((object) => object.path === path);
      if (file === undefined) continue;
      const manifest = await this.#readManifest(file, version, found);
      if (manifest !== undefined) addReferencedLayers(manifest, referenced);
    }
    // Nobody will load a quarantined version again.
    const quarantined = await this.#channels.listQuarantined(this.#bundle);
    const unreadable = found.filter(({ version }) => !quarantined.has(version ?? ''));
    const mayBeNamed = ({ ageMs }: StoredObject): boolean =>
      unreadable.some(
        (manifest) => manifest.version === undefined || ageMs >= manifest.ageMs - AGE_MARGIN_MS,
      );
    const unnamed = layers.filter(
      ({ path, ageMs }) => !referenced.has(path) && ageMs > this.#policy.keepMs,
    );
    const kept = unnamed.filter(mayBeNamed);
    const objects = [
      ...this.#listUnreferencedFiles(contents, new Set(remaining), removed),
      ...unnamed.filter((layer) => !mayBeNamed(layer)),
      ...intents.filter(({ ageMs }) => ageMs > INTENT_AGE_MAX_MS),
    ];
    const keptForUnreadable = { layers: kept.length, bytes: countBytes(kept) };
    return { objects, unreadable, keptForUnreadable };
  }

  #listPublished(files: readonly StoredObject[]): PublishedVersion[] {
    const root = `${versionsFolder(this.#bundle)}/`;
    return files.flatMap(({ path, ageMs }) => {
      const [version = '', file, ...deeper] = path.slice(root.length).split('/');
      return file === 'manifest.json' && deeper.length === 0 ? [{ version, ageMs }] : [];
    });
  }

  async #selectRetained({
    published,
    pendingManifests,
  }: BundleContents): Promise<Map<string, string>> {
    const inProgress = new Set(pendingManifests.map(({ version }) => version));
    for (const { version } of published) {
      const context = { backend: this.#backend, keys: {}, clock: this.#clock };
      const log = new RolloutLog({ ...context, bundle: this.#bundle, version });
      const state = (await log.readHistory()).at(-1)?.state;
      if (state !== undefined && isInProgress(state)) inProgress.add(version);
    }
    const referenced = await this.#listReferenced();
    const quarantined = await this.#channels.listQuarantined(this.#bundle);
    return selectRetainedVersions(published, {
      referenced,
      inProgress,
      quarantined,
      ...this.#policy,
    });
  }

  /**
   * The versions that channels point to or would roll back to, and those that answer a variant of
   * a running experiment, with the reason.
   */
  async #listReferenced(): Promise<Map<string, string>> {
    const referenced = new Map<string, string>();
    const channels = this.#channels;
    const context = { backend: this.#backend, keys: {}, clock: this.#clock };
    const { entry } = await new ExperimentLog({ ...context, bundle: this.#bundle }).readNewest();
    for (const { name, variants } of entry?.experiments ?? []) {
      for (const { target } of variants) {
        if (target.version === undefined || target.model !== undefined) continue;
        referenced.set(target.version, `experiment ${name} uses it`);
      }
    }
    for (const channel of await channels.list(this.#bundle)) {
      const { pointer, previous } = await channels.readState(this.#bundle, channel);
      if (previous !== undefined)
        referenced.set(previous.version, `channel ${channel} would roll back to it`);
      if (pointer !== undefined) referenced.set(pointer.version, `channel ${channel} points to it`);
    }
    return referenced;
  }

  /** Files of removed versions, of unfinished publications and of killed collections. */
  #listUnreferencedFiles(
    { versionFiles, rollouts, pendingManifests, unreadableIntents }: BundleContents,
    remaining: ReadonlySet<string>,
    removed: ReadonlySet<string>,
  ): StoredObject[] {
    const idleMs = Math.max(this.#policy.keepMs, INTENT_AGE_MAX_MS);
    return [...versionFiles, ...rollouts].filter(({ path, ageMs }) => {
      const version = path.split('/')[2] ?? '';
      const isManifest = path === `${versionsFolder(this.#bundle)}/${version}/manifest.json`;
      if (isManifest || remaining.has(version)) return false;
      const isPending = pendingManifests.length + unreadableIntents.length > 0;
      return removed.has(version) || (!isPending && ageMs > idleMs);
    });
  }

  /**
   * Undefined if it was removed meanwhile, or cannot be read, which adds it to `unreadable`.
   * @param version undefined for the manifest of a publication
   * @throws CubeError UNAVAILABLE, IO: nothing is known about what it names
   */
  async #readManifest(
    { path, ageMs }: StoredObject,
    version: string | undefined,
    unreadable: UnreadableManifest[],
  ): Promise<Manifest | undefined> {
    try {
      const bytes = await this.#backend.read(path, MANIFEST_BYTES_MAX);
      const name = `${this.#backend.location}/${path}`;
      return rethrowAsCorrupt(() => parseManifest(new TextDecoder().decode(bytes), name), '');
    } catch (error) {
      const { code, message } = CubeError.from(error);
      if (code === 'NOT_FOUND') return undefined;
      if (!UNREADABLE_CODES.has(code)) throw error;
      unreadable.push({ version, path, message, ageMs });
      return undefined;
    }
  }

  async #isOurs(): Promise<boolean> {
    const path = collectionMarkPath(this.#bundle);
    if ((await this.#backend.size(path)) === undefined) return false;
    const text = new TextDecoder().decode(await this.#backend.read(path, MANIFEST_BYTES_MAX));
    return text.includes(this.#id);
  }

  async #requireOurs(): Promise<void> {
    if (await this.#isOurs()) return;
    const message =
      `the garbage collection of ${this.#bundle} stopped: ` +
      'it took so long that another one took over';
    throw new CubeError('CONFLICT', message);
  }
}

function countBytes(objects: readonly StoredObject[]): number {
  return objects.reduce((sum, { bytes }) => sum + bytes, 0);
}

function addReferencedLayers({ bundle, tables }: Manifest, referenced: Set<string>): void {
  for (const table of tables) {
    for (const { contentId } of table.shards.flat()) {
      referenced.add(layerPath(bundle, table.name, contentId));
    }
  }
}
