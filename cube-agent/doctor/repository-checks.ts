/** What can be wrong with a bundle in its repository: channels, versions, layers, rollouts, garbage. */
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest } from '../../lib/core/manifest.ts';
import { isUnderWay } from '../../lib/core/rollout.ts';
import { wallClockMs } from '../../lib/platform/clock.ts';
import type { ChannelState, Repository } from '../../lib/repository/repository.ts';
import { channelCommand, type Patient, type Report } from './findings.ts';

const DAY_MS = 24 * 3_600_000;
/** As `cube-agent gc` keeps them unless told otherwise. */
const GARBAGE_POLICY = { keepVersions: 5, keepMs: 7 * DAY_MS };
/** A controller writes a step, or says that it still works on one, within a few minutes. */
const ROLLOUT_IDLE_MS = 15 * 60_000;

const MEND_THE_WAY = 'mend the way to it; agents and serving go on with what they have until then';

export interface RepositoryWish {
  readonly repository: Repository;
  readonly patient: Patient;
  /** Reads every layer, not only its size. */
  readonly deep: boolean;
  /** A pointer that moved longer ago is stale; undefined: never. */
  readonly staleMs: number | undefined;
  /** Told of each layer that was read. */
  readonly onBytes: (bytes: number) => void;
}

/** What the channel wants; undefined where it cannot be read. */
export interface Wanted {
  readonly state: ChannelState | undefined;
  readonly manifest: Manifest | undefined;
}

export async function checkRepository(wish: RepositoryWish, report: Report): Promise<Wanted> {
  const { repository, patient } = wish;
  const channels = await readChannels(wish, report);
  const states = new Map<string, ChannelState>();
  for (const channel of channels) {
    const state = await checkChannel({ ...wish, patient: { ...patient, channel } }, report);
    if (state !== undefined) states.set(channel, state);
  }
  const manifests = await checkVersions(wish, [...states.values()], report);
  if (!repository.canList) {
    report({
      severity: 'note',
      check: 'repository-read-only',
      where: repository.location,
      what: 'nothing can be written or listed here: rollouts and garbage were not looked at',
      todo: 'look again with --repository set to the folder or bucket behind it',
    });
  } else if (channels.length > 0) {
    await checkRollouts(wish, report);
    await checkGarbage(wish, report);
  }
  const state = states.get(patient.channel);
  const pointer = state?.pointer?.version;
  return { state, manifest: pointer === undefined ? undefined : manifests.get(pointer) };
}

/** The bundle's channels, the wanted one first. @throws CubeError NOT_FOUND naming the bundles there are */
async function readChannels(
  { repository, patient: { bundle, channel } }: RepositoryWish,
  report: Report,
): Promise<string[]> {
  if (!repository.canList) return [channel];
  try {
    const bundles = await repository.bundles();
    if (bundles.includes(bundle)) {
      return [channel, ...(await repository.channels(bundle)).filter((name) => name !== channel)];
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
      todo: MEND_THE_WAY,
    });
    return [];
  }
}

async function checkChannel(
  wish: RepositoryWish,
  report: Report,
): Promise<ChannelState | undefined> {
  const { repository, patient } = wish;
  try {
    const state = await repository.channel(patient.bundle, patient.channel);
    checkPointer(state, wish, report);
    return state;
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const unreachable = code !== 'CORRUPT' && code !== 'DENIED';
    report({
      severity: 'error',
      check: unreachable ? 'repository-unreachable' : 'channel-damaged',
      where: `channel ${patient.channel}`,
      what: message,
      todo: unreachable
        ? MEND_THE_WAY
        : 'put the entry back from a copy, or remove it: the one before it then holds (docs/operations.md)',
    });
    return undefined;
  }
}

function checkPointer(
  { pointer, quarantined }: ChannelState,
  { patient, staleMs }: RepositoryWish,
  report: Report,
): void {
  const where = `channel ${patient.channel}`;
  if (pointer === undefined) {
    report({
      severity: 'warning',
      check: 'channel-empty',
      where,
      what: 'points to no version yet',
      todo: channelCommand(patient, 'activate', '--version <version> --reason <why>'),
    });
    return;
  }
  const { version, at, by, reason } = pointer;
  if (quarantined.has(version)) {
    report({
      severity: 'error',
      check: 'pointer-quarantined',
      where,
      what: `points to version ${version}, which is quarantined`,
      todo: channelCommand(patient, 'rollback', `--from ${version} --reason <why>`),
    });
  }
  if (pointer.pinned) {
    report({
      severity: 'note',
      check: 'channel-pinned',
      where,
      what: `pinned to version ${version} by ${by}: ${reason}`,
      todo: channelCommand(patient, 'unpin', '--reason <why>'),
    });
  }
  if (staleMs !== undefined && wallClockMs() - Date.parse(at) > staleMs) {
    report({
      severity: 'warning',
      check: 'stale',
      where,
      what: `nothing newer than version ${version} since ${at}`,
      todo: 'see why training or publishing stopped: cube-agent history says what came last',
    });
  }
}

/** Versions that channels point to or would go back to. */
async function checkVersions(
  wish: RepositoryWish,
  states: readonly ChannelState[],
  report: Report,
): Promise<Map<string, Manifest>> {
  const pointers = states.flatMap(({ pointer }) => pointer?.version ?? []);
  const others = states.flatMap(({ previous }) => previous?.version ?? []);
  const manifests = new Map<string, Manifest>();
  const seen = new Set<string>();
  for (const version of new Set([...pointers, ...others])) {
    const manifest = await checkManifest(wish, version, pointers.includes(version), report);
    if (manifest === undefined) continue;
    manifests.set(version, manifest);
    await checkFiles(wish, manifest, report);
    await checkLayers(wish, manifest, seen, report);
  }
  return manifests;
}

async function checkManifest(
  { repository, patient }: RepositoryWish,
  version: string,
  isPointer: boolean,
  report: Report,
): Promise<Manifest | undefined> {
  const { bundle } = patient;
  try {
    return await repository.manifest(bundle, version);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const target = `--repository ${patient.repository} --bundle ${bundle} --version ${version}`;
    const again = `cube-agent publish --from <a copy> ${target}`;
    const [check, todo] =
      code === 'NOT_FOUND'
        ? ['version-absent', again]
        : code === 'DENIED'
          ? ['unsigned', `cube-agent sign ${target} --signing-key <file>`]
          : ['manifest-damaged', `remove its manifest.json, then ${again}`];
    const severity = isPointer ? 'error' : 'warning';
    report({ severity, check, where: `version ${version}`, what: message, todo });
    return undefined;
  }
}

async function checkFiles(
  { repository, patient }: RepositoryWish,
  { bundle, version, files }: Manifest,
  report: Report,
): Promise<void> {
  for (const { path } of files) {
    try {
      await repository.readVersionFile(bundle, version, path);
    } catch (error) {
      report({
        severity: 'error',
        check: 'file-damaged',
        where: `version ${version}`,
        what: CubeError.from(error).message,
        todo: `remove the file, then cube-agent publish --from <a copy> --repository ${patient.repository} --bundle ${bundle} --version ${version}`,
      });
    }
  }
}

async function checkLayers(
  wish: RepositoryWish,
  { bundle, version, tables }: Manifest,
  seen: Set<string>,
  report: Report,
): Promise<void> {
  const { repository } = wish.patient;
  for (const table of tables) {
    for (const [shard, layer] of table.shards.flatMap((chain, i) =>
      chain.map((l) => [i, l] as const),
    )) {
      if (seen.has(`${table.name}/${layer.contentId}`)) continue;
      seen.add(`${table.name}/${layer.contentId}`);
      const what = await layerFault(wish, table.name, layer);
      if (what === undefined) continue;
      report({
        severity: 'error',
        check: 'layer-damaged',
        where: `version ${version}, table ${table.name}, shard ${shard}`,
        what,
        todo: `remove the layer, then cube-agent publish --from <a copy> --repository ${repository} --bundle ${bundle} --version ${version}`,
      });
    }
  }
}

async function layerFault(
  { repository, patient: { bundle }, deep, onBytes }: RepositoryWish,
  table: string,
  layer: LayerRef,
): Promise<string | undefined> {
  const isThere = await repository.holdsLayer(bundle, table, layer).catch(() => false);
  if (!isThere) return `layer ${layer.contentId} is missing, or does not have ${layer.bytes} bytes`;
  if (!deep) return undefined;
  try {
    await repository.verifyLayer(bundle, table, layer, { onBytes });
    return undefined;
  } catch (error) {
    return CubeError.from(error).message;
  }
}

/** Rollouts that began and that nobody goes on with. The wall clock only serves people here. */
async function checkRollouts(
  { repository, patient }: RepositoryWish,
  report: Report,
): Promise<void> {
  const { bundle } = patient;
  for (const version of await repository.rollouts(bundle)) {
    const where = `version ${version}`;
    try {
      const newest = (await repository.rollout(bundle, version).history()).at(-1);
      if (newest === undefined || !isUnderWay(newest.state)) continue;
      if (wallClockMs() - Date.parse(newest.at) < ROLLOUT_IDLE_MS) continue;
      report({
        severity: 'warning',
        check: 'rollout-idle',
        where,
        what: `its rollout is ${newest.state} since ${newest.at}, and ${newest.holder} does not go on with it`,
        todo: `${channelCommand(patient, 'rollout', `--version ${version} --fleet <file>`)} --resume, or --abort; or start the controller again`,
      });
    } catch (error) {
      report({
        severity: 'warning',
        check: 'rollout-damaged',
        where,
        what: CubeError.from(error).message,
        todo: 'put the entry back from a copy, or remove it: the one before it then holds',
      });
    }
  }
}

async function checkGarbage(
  { repository, patient }: RepositoryWish,
  report: Report,
): Promise<void> {
  const wish = { by: 'doctor', dryRun: true };
  try {
    const garbage = await repository.collectGarbage(patient.bundle, GARBAGE_POLICY, wish);
    if (garbage.objects === 0) return;
    report({
      severity: 'note',
      check: 'garbage',
      where: repository.location,
      what: `${garbage.versions.length} versions and ${garbage.objects} objects (${garbage.bytes} bytes) that nobody needs`,
      todo: `cube-agent gc --repository ${patient.repository} --bundle ${patient.bundle}`,
    });
  } catch (error) {
    report({
      severity: 'warning',
      check: 'garbage',
      where: repository.location,
      what: `garbage cannot be collected: ${CubeError.from(error).message}`,
      todo: 'mend what it names; nothing is removed until then',
    });
  }
}
