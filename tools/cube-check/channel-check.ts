/** The channels and the quarantine of a bundle: every entry readable, and pointing to versions that are there. */
import { CubeError } from '../../lib/core/errors.ts';
import { NAME_PATTERN } from '../../lib/core/names.ts';
import {
  type ChannelEntry,
  channelState,
  readChannelEntry,
  readQuarantineEntry,
} from '../../lib/repository/channel-log.ts';
import {
  channelEntryPath,
  channelFolder,
  channelsFolder,
  manifestPath,
  quarantineFolder,
  quarantinePath,
  seqOf,
} from '../../lib/repository/layout.ts';
import type { Findings } from './findings.ts';
import { placeOf, type Source } from './source.ts';

/** Where nobody can list a log, it is followed so far. */
const ENTRIES_PROBED_MAX = 100_000;

export interface ChannelScope {
  readonly source: Source;
  readonly bundle: string;
  readonly findings: Findings;
}

/** @returns the names of the channels that a folder lists */
export async function channelNames({ source, bundle }: ChannelScope): Promise<string[]> {
  const names = (await source.list(channelsFolder(bundle))) ?? [];
  return names.filter((name) => NAME_PATTERN.test(name));
}

/** Checks the log of a channel. @returns the versions that it wants: of its pointer, and the one before */
export async function checkChannel(scope: ChannelScope, channel: string): Promise<string[]> {
  const { source, bundle, findings } = scope;
  const entries = await readEntries(scope, channel);
  findings.checked.channels += 1;
  const quarantined = new Set<string>();
  for (const version of new Set(entries.map((entry) => entry.version))) {
    if (await source.exists(quarantinePath(bundle, version))) quarantined.add(version);
  }
  const { pointer, previous } = channelState(entries, quarantined);
  if (pointer === undefined) {
    findings.note(placeOf(source, channelFolder(bundle, channel)), 'the channel points nowhere');
    return [];
  }
  const place = placeOf(source, channelEntryPath(bundle, channel, pointer.seq));
  if (quarantined.has(pointer.version)) {
    const remedy = 'roll back, or activate another version';
    findings.problem(
      place,
      `${place}: channel ${channel} points to version ${pointer.version}, which is quarantined; ${remedy}`,
    );
  }
  const wanted: string[] = [];
  for (const [entry, role] of [
    [pointer, 'points to'],
    [previous, 'would roll back to'],
  ] as const) {
    if (entry === undefined) continue;
    if (await source.exists(manifestPath(bundle, entry.version))) wanted.push(entry.version);
    else sayAbsent(scope, channel, entry, role);
  }
  return wanted;
}

function sayAbsent(
  { source, bundle, findings }: ChannelScope,
  channel: string,
  { seq, version }: ChannelEntry,
  role: string,
): void {
  const place = placeOf(source, channelEntryPath(bundle, channel, seq));
  findings.problem(
    place,
    `${place}: channel ${channel} ${role} version ${version}, which has no manifest here; ` +
      'publish it again, or activate another version',
    'NOT_FOUND',
  );
}

/** All entries that can be read, oldest first. */
async function readEntries(scope: ChannelScope, channel: string): Promise<ChannelEntry[]> {
  const { source, bundle, findings } = scope;
  const entries: ChannelEntry[] = [];
  for await (const seq of sequence(scope, channel)) {
    const place = placeOf(source, channelEntryPath(bundle, channel, seq));
    try {
      entries.push(await readChannelEntry(source, bundle, channel, seq));
      findings.checked.files += 1;
    } catch (error) {
      const { code, message } = CubeError.from(error);
      const remedy = code === 'CORRUPT' ? '; put it back, or remove it' : '';
      findings.problem(place, message + remedy, code);
    }
  }
  return entries;
}

async function* sequence(scope: ChannelScope, channel: string): AsyncGenerator<number> {
  const { source, bundle, findings } = scope;
  const folder = channelFolder(bundle, channel);
  const names = await source.list(folder);
  if (names !== undefined) {
    for (const name of names) {
      const seq = seqOf(name);
      if (seq !== undefined) yield seq;
      else findings.note(placeOf(source, `${folder}/${name}`), 'is no entry of the channel');
    }
    return;
  }
  for (let seq = 1; seq <= ENTRIES_PROBED_MAX; seq++) {
    if (!(await source.exists(channelEntryPath(bundle, channel, seq)))) return;
    yield seq;
  }
}

/** @param versions that have a manifest */
export async function checkQuarantine(
  { source, bundle, findings }: ChannelScope,
  versions: ReadonlySet<string>,
): Promise<void> {
  for (const name of (await source.list(quarantineFolder(bundle))) ?? []) {
    const version = name.replace(/\.json$/, '');
    const place = placeOf(source, `${quarantineFolder(bundle)}/${name}`);
    if (!name.endsWith('.json') || !NAME_PATTERN.test(version)) {
      findings.note(place, 'is no entry of the quarantine');
      continue;
    }
    try {
      const { by, at, reason } = await readQuarantineEntry(source, bundle, version);
      findings.checked.files += 1;
      const gone = versions.has(version) ? '' : '; it has no manifest here';
      findings.note(
        place,
        `version ${version} is quarantined (${by}, ${at}: ${JSON.stringify(reason)})${gone}`,
      );
    } catch (error) {
      const { code, message } = CubeError.from(error);
      findings.problem(place, `${message}; write it again`, code);
    }
  }
}
