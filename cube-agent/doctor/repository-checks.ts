/** Checks a bundle in its repository: channels, versions, layers, rollouts, garbage. */
import { CubeError } from '../../lib/core/errors.ts';
import type { ReportFinding } from '../../lib/core/findings.ts';
import type { LayerRef, Manifest } from '../../lib/core/manifest.ts';
import { isInProgress } from '../../lib/core/rollout.ts';
import { wallClockMs } from '../../lib/platform/clock.ts';
import { channelEntryPath } from '../../lib/repository/layout.ts';
import type {
  ChannelState,
  GarbageReport,
  Repository,
  UnreadableManifest,
} from '../../lib/repository/repository.ts';
import { RepositoryChecks, readFailure } from '../../lib/repository/repository-checks.ts';
import {
  type CheckTarget,
  createRemedies,
  formatChannelCommand,
  RESTORE_ACCESS,
} from './check-target.ts';

const DAY_MS = 24 * 3_600_000;
/** The defaults of `cube-agent gc`. */
const RETENTION_POLICY = { keepVersions: 5, keepMs: 7 * DAY_MS };
/** Loading the largest versions takes less. */
const OUTCOME_LATE_MS = 60 * 60_000;
/** A controller writes a step, or that it still works on one, at least every few minutes. */
const ROLLOUT_IDLE_MS = 15 * 60_000;

export interface RepositoryCheckOptions {
  readonly repository: Repository;
  readonly target: CheckTarget;
  /** Read every layer, not only its size. */
  readonly deep: boolean;
  /** A pointer that moved longer ago is stale; undefined: never. */
  readonly staleMs: number | undefined;
  /** Called with the size of each layer that was read. */
  readonly onBytes: (bytes: number) => void;
}

/** What the channel points to; undefined where it cannot be read. */
export interface DesiredContent {
  readonly state: ChannelState | undefined;
  readonly manifest: Manifest | undefined;
}

export async function checkRepository(
  options: RepositoryCheckOptions,
  report: ReportFinding,
): Promise<DesiredContent> {
  const { repository, target } = options;
  const checks = new RepositoryChecks(createRemedies(target), report);
  const channels = await listChannels(options, report);
  const states = new Map<string, ChannelState>();
  for (const channel of channels) {
    const ownTarget = { ...target, channel };
    const state = await checkChannel({ ...options, target: ownTarget }, checks, report);
    if (state !== undefined) states.set(channel, state);
  }
  const manifests = await checkVersions(options, [...states.values()], checks);
  if (!repository.canList) {
    report({
      severity: 'note',
      check: 'repository-read-only',
      where: repository.location,
      what: 'cannot be listed or written, so rollouts and garbage were not checked',
      todo: 'run doctor with --repository set to the folder or bucket behind this URL',
    });
  } else if (channels.length > 0) {
    checkWriteAccess(options, report);
    await checkRollouts(options, report);
    await checkGarbage(options, report);
  }
  const state = states.get(target.channel);
  const pointer = state?.pointer?.version;
  return { state, manifest: pointer === undefined ? undefined : manifests.get(pointer) };
}

/** The bundle's channels, the target's first. @throws CubeError NOT_FOUND listing the bundles */
async function listChannels(
  { repository, target: { bundle, channel } }: RepositoryCheckOptions,
  report: ReportFinding,
): Promise<string[]> {
  if (!repository.canList) return [channel];
  try {
    const bundles = await repository.listBundles();
    if (bundles.includes(bundle)) {
      const names = await repository.listChannels(bundle);
      return [channel, ...names.filter((name) => name !== channel)];
    }
    const known = bundles.join(', ') || 'none';
    const message = `${repository.location} has no bundle ${bundle} (it has: ${known})`;
    throw new CubeError('NOT_FOUND', message);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    if (code === 'NOT_FOUND') throw error;
    report({
      severity: 'error',
      check: 'repository-unreachable',
      where: repository.location,
      what: message,
      todo: RESTORE_ACCESS,
    });
    return [];
  }
}

/** Only a note: on hosts whose agents and serving just read, it is meant to be so. */
function checkWriteAccess(
  { repository, target: { bundle, channel } }: RepositoryCheckOptions,
  report: ReportFinding,
): void {
  const obstacle = repository.findWriteObstacle(bundle, channel);
  if (obstacle === undefined) return;
  report({
    severity: 'note',
    check: 'repository-read-only',
    where: repository.location,
    what: `cannot be changed from here, as a controller or publisher would: ${obstacle.message}`,
    todo:
      'if this host should change it, mount it writable and give this user write permission for ' +
      'the folder',
  });
}

async function checkChannel(
  options: RepositoryCheckOptions,
  checks: RepositoryChecks,
  report: ReportFinding,
): Promise<ChannelState | undefined> {
  const { repository, target } = options;
  const where = `channel ${target.channel}`;
  try {
    const state = await repository.readChannel(target.bundle, target.channel);
    checks.checkPointer(target.channel, state, where);
    const seqs = state.history.map(({ seq }) => seq);
    checks.checkSequence(
      seqs,
      (seq) => `${repository.location}/${channelEntryPath(target.bundle, target.channel, seq)}`,
    );
    checkPinAndAge(state, options, report);
    checkOutcomes(state, options, report);
    return state;
  } catch (error) {
    checks.reportEntryError(where, error);
    return undefined;
  }
}

function checkPinAndAge(
  { pointer }: ChannelState,
  { target, staleMs }: RepositoryCheckOptions,
  report: ReportFinding,
): void {
  if (pointer === undefined) return;
  const where = `channel ${target.channel}`;
  const { version, at, by, reason } = pointer;
  if (pointer.pinned) {
    report({
      severity: 'note',
      check: 'channel-pinned',
      where,
      what: `is pinned to version ${version} by ${by}: ${reason}`,
      todo: formatChannelCommand(target, 'unpin', '--reason <why>'),
    });
  }
  if (staleMs !== undefined && wallClockMs() - Date.parse(at) > staleMs) {
    report({
      severity: 'warning',
      check: 'stale',
      where,
      what: `has had no newer version than ${version} since ${at}`,
      todo: 'find out why training or publishing stopped; cube-agent history lists the last moves',
    });
  }
}

/** Reports that processes no longer record which versions have served, as they once did. */
function checkOutcomes(
  { pointer, previous, outcomes: { served, failed } }: ChannelState,
  { target }: RepositoryCheckOptions,
  report: ReportFinding,
): void {
  if (pointer === undefined || served.size === 0) return;
  const { version, at } = pointer;
  if (served.has(version) || failed.has(version)) return;
  if (wallClockMs() - Date.parse(at) < OUTCOME_LATE_MS) return;
  report({
    severity: 'warning',
    check: 'outcome-missing',
    where: `channel ${target.channel}`,
    what:
      `no process has recorded that version ${version} serves, so a rollback may pass over ` +
      `versions that did: it would go to ${previous?.version ?? 'none'}`,
    todo: 'let serving write to outcomes/ in the repository; its log names the error',
  });
}

/** Checks the versions that channels point to or would roll back to. @returns their manifests */
async function checkVersions(
  options: RepositoryCheckOptions,
  states: readonly ChannelState[],
  checks: RepositoryChecks,
): Promise<Map<string, Manifest>> {
  const { repository, target } = options;
  const pointers = states.flatMap(({ pointer }) => pointer?.version ?? []);
  const others = states.flatMap(({ previous }) => previous?.version ?? []);
  const manifests = new Map<string, Manifest>();
  const checkedLayers = new Set<string>();
  for (const version of new Set([...pointers, ...others])) {
    try {
      manifests.set(version, await repository.readManifest(target.bundle, version));
    } catch (error) {
      const severity = pointers.includes(version) ? 'error' : 'warning';
      checks.reportManifestError(version, `version ${version}`, error, severity);
    }
    const manifest = manifests.get(version);
    if (manifest === undefined) continue;
    await checkFiles(repository, manifest, checks);
    await checkLayers(options, manifest, checkedLayers, checks);
  }
  return manifests;
}

async function checkFiles(
  repository: Repository,
  { bundle, version, files }: Manifest,
  checks: RepositoryChecks,
): Promise<void> {
  for (const { path } of files) {
    try {
      await repository.readStoredFile(bundle, version, path);
    } catch (error) {
      checks.reportFileError(version, `version ${version}`, error);
    }
  }
}

/** @param checked layers checked before, for an earlier version; this version's are added */
async function checkLayers(
  options: RepositoryCheckOptions,
  { version, tables }: Manifest,
  checked: Set<string>,
  checks: RepositoryChecks,
): Promise<void> {
  for (const { name, shards } of tables) {
    for (const [shard, chain] of shards.entries()) {
      for (const layer of chain) {
        const key = `${name}/${layer.contentId}`;
        if (checked.has(key)) continue;
        checked.add(key);
        const where = `version ${version}, table ${name}, shard ${shard}`;
        await checkLayer(options, name, layer).catch((error: unknown) =>
          checks.reportLayerError(version, where, error),
        );
      }
    }
  }
}

/** @throws CubeError if the layer is missing or has other content than the manifest says */
async function checkLayer(
  { repository, target: { bundle }, deep, onBytes }: RepositoryCheckOptions,
  table: string,
  layer: LayerRef,
): Promise<void> {
  const isComplete = await repository.hasLayer(bundle, table, layer).catch(() => false);
  if (!isComplete) {
    const { contentId, bytes } = layer;
    const message = `layer ${contentId} is missing or does not have its ${bytes} bytes`;
    throw new CubeError('CORRUPT', message);
  }
  if (deep) await repository.verifyLayer(bundle, table, layer, { onBytes });
}

/** Reports rollouts that started and that no controller continues. Ages are only for people. */
async function checkRollouts(
  { repository, target }: RepositoryCheckOptions,
  report: ReportFinding,
): Promise<void> {
  const { bundle } = target;
  for (const version of await repository.listRollouts(bundle)) {
    const where = `version ${version}`;
    try {
      const newest = (await repository.rolloutLog(bundle, version).readHistory()).at(-1);
      if (newest === undefined || !isInProgress(newest.state)) continue;
      if (wallClockMs() - Date.parse(newest.at) < ROLLOUT_IDLE_MS) continue;
      const command = formatChannelCommand(
        target,
        'rollout',
        `--version ${version} --fleet <file>`,
      );
      report({
        severity: 'warning',
        check: 'rollout-idle',
        where,
        what:
          `its rollout is ${newest.state} since ${newest.at}, ` +
          `and ${newest.holder} does not continue it`,
        todo: `restart the controller, or run ${command} with --resume or --abort`,
      });
    } catch (error) {
      report({
        severity: 'warning',
        check: 'rollout-damaged',
        where,
        what: readFailure(error).message,
        todo: 'restore the entry from a copy, or remove it so that the previous entry applies',
      });
    }
  }
}

async function checkGarbage(
  { repository, target }: RepositoryCheckOptions,
  report: ReportFinding,
): Promise<void> {
  const where = repository.location;
  try {
    const options = { by: 'doctor', dryRun: true };
    const garbage = await repository.collectGarbage(target.bundle, RETENTION_POLICY, options);
    for (const manifest of garbage.unreadable) reportUnreadable(manifest, garbage, target, report);
    if (garbage.objects === 0) return;
    const { versions, objects, bytes } = garbage;
    report({
      severity: 'note',
      check: 'garbage',
      where,
      what:
        `has ${versions.length} unneeded versions and ` +
        `${objects} unneeded objects (${bytes} bytes)`,
      todo: `cube-agent gc --repository ${target.repository} --bundle ${target.bundle}`,
    });
  } catch (error) {
    report({
      severity: 'warning',
      check: 'garbage',
      where,
      what: `garbage cannot be collected: ${CubeError.from(error).message}`,
      todo: 'repair what the message names; until then nothing is removed',
    });
  }
}

/** A manifest that holds garbage back; a channel's own version is reported by its own check too. */
function reportUnreadable(
  { version, path, message }: UnreadableManifest,
  { keptForUnreadable: { layers, bytes } }: GarbageReport,
  target: CheckTarget,
  report: ReportFinding,
): void {
  const { repository, bundle } = target;
  const of = `--repository ${repository} --bundle ${bundle}`;
  report({
    severity: 'warning',
    check: 'garbage',
    where: version === undefined ? path : `version ${version}`,
    what: `${message}; garbage collection keeps ${layers} layers (${bytes} bytes) that it may name`,
    todo:
      version === undefined
        ? `remove ${path} if no publisher uses it`
        : `restore the manifest from a copy, or give the version up: cube-agent quarantine ${of} ` +
          `--version ${version} --reason unreadable, then cube-agent gc ${of}`,
  });
}
