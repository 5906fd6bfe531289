/** Checks the channels and the quarantine of a bundle: entries, and the versions that they name. */
import { CubeError } from '../../lib/core/errors.ts';
import { NAME_PATTERN } from '../../lib/core/names.ts';
import {
  type ChannelEntry,
  computeChannelState,
  readChannelEntry,
  readQuarantineEntry,
} from '../../lib/repository/channel-log.ts';
import {
  channelEntryPath,
  channelFolder,
  channelsFolder,
  manifestPath,
  parseSeq,
  quarantineFolder,
  quarantinePath,
} from '../../lib/repository/layout.ts';
import type { RepositoryChecks } from '../../lib/repository/repository-checks.ts';
import type { CheckReport } from './check-report.ts';
import { type CheckSource, toLocation } from './source.ts';

/** Where entries cannot be listed, at most this many are probed. */
const PROBED_ENTRIES_MAX = 100_000;
/** Where entries cannot be listed, the log ends where this many in a row are missing. */
const PROBED_MISSING_MAX = 4;

export interface ChannelScope {
  readonly source: CheckSource;
  readonly bundle: string;
  readonly report: CheckReport;
  readonly checks: RepositoryChecks;
}

/** The names of the bundle's channels; empty where folders cannot be listed. */
export async function listChannels({ source, bundle }: ChannelScope): Promise<string[]> {
  const names = (await source.list(channelsFolder(bundle))) ?? [];
  return names.filter((name) => NAME_PATTERN.test(name));
}

/**
 * Checks the log of a channel.
 * @returns the versions of the pointer and of a rollback, if they have a manifest
 */
export async function checkChannel(scope: ChannelScope, channel: string): Promise<string[]> {
  const { source, bundle, report, checks } = scope;
  const entries = await readEntries(scope, channel);
  report.checked.channels += 1;
  const quarantined = new Set<string>();
  for (const version of new Set(entries.map((entry) => entry.version))) {
    if (await source.exists(quarantinePath(bundle, version))) quarantined.add(version);
  }
  const state = computeChannelState(entries, quarantined);
  const { pointer, previous } = state;
  const path =
    pointer === undefined
      ? channelFolder(bundle, channel)
      : channelEntryPath(bundle, channel, pointer.seq);
  checks.checkPointer(channel, state, toLocation(source, path));
  const versions: string[] = [];
  for (const [entry, role] of [
    [pointer, 'points to'],
    [previous, 'would roll back to'],
  ] as const) {
    if (entry === undefined) continue;
    if (await source.exists(manifestPath(bundle, entry.version))) versions.push(entry.version);
    else reportMissingVersion(scope, channel, entry, role);
  }
  return versions;
}

function reportMissingVersion(
  { source, bundle, checks }: ChannelScope,
  channel: string,
  { seq, version }: ChannelEntry,
  role: string,
): void {
  const message = `channel ${channel} ${role} version ${version}, which has no manifest here`;
  const where = toLocation(source, channelEntryPath(bundle, channel, seq));
  checks.reportManifestError(version, where, new CubeError('NOT_FOUND', message), 'error');
}

/** All entries that can be read, oldest first. */
async function readEntries(scope: ChannelScope, channel: string): Promise<ChannelEntry[]> {
  const { source, bundle, report, checks } = scope;
  const entries: ChannelEntry[] = [];
  const seqs: number[] = [];
  for await (const seq of listSequence(scope, channel)) {
    seqs.push(seq);
    try {
      entries.push(await readChannelEntry(source, bundle, channel, seq));
      report.checked.files += 1;
    } catch (error) {
      checks.reportEntryError(toLocation(source, channelEntryPath(bundle, channel, seq)), error);
    }
  }
  checks.checkSequence(
    seqs.sort((a, b) => a - b),
    (seq) => toLocation(source, channelEntryPath(bundle, channel, seq)),
  );
  return entries;
}

async function* listSequence(scope: ChannelScope, channel: string): AsyncGenerator<number> {
  const { source, bundle, report } = scope;
  const folder = channelFolder(bundle, channel);
  const names = await source.list(folder);
  if (names !== undefined) {
    for (const name of names) {
      const seq = parseSeq(name);
      if (seq !== undefined) yield seq;
      else
        report.addNote(toLocation(source, `${folder}/${name}`), 'is not an entry of the channel');
    }
    return;
  }
  let missing = 0;
  for (let seq = 1; seq <= PROBED_ENTRIES_MAX && missing < PROBED_MISSING_MAX; seq++) {
    const exists = await source.exists(channelEntryPath(bundle, channel, seq));
    missing = exists ? 0 : missing + 1;
    if (exists) yield seq;
  }
}

/** @param versions those that have a manifest */
export async function checkQuarantine(
  { source, bundle, report, checks }: ChannelScope,
  versions: ReadonlySet<string>,
): Promise<void> {
  for (const name of (await source.list(quarantineFolder(bundle))) ?? []) {
    const version = name.replace(/\.json$/, '');
    const where = toLocation(source, `${quarantineFolder(bundle)}/${name}`);
    if (!name.endsWith('.json') || !NAME_PATTERN.test(version)) {
      report.addNote(where, 'is not an entry of the quarantine');
      continue;
    }
    try {
      const { by, at, reason } = await readQuarantineEntry(source, bundle, version);
      report.checked.files += 1;
      const missing = versions.has(version) ? '' : '; it has no manifest here';
      report.addNote(
        where,
        `version ${version} is quarantined (${by}, ${at}: ${JSON.stringify(reason)})${missing}`,
      );
    } catch (error) {
      checks.reportEntryError(where, error);
    }
  }
}
