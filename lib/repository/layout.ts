/**
 * Where everything lies, as paths relative to a repository's root or to a host's data folder (they have one shape):
 * docs/formats/repository.md. Pure; "/" separates on every system. Every name is checked here, so a path made here
 * cannot leave its root.
 */
import { CubeError } from '../core/errors.ts';
import { CONTENT_ID_PATTERN, checkName } from '../core/names.ts';

const MANIFEST_FILE = 'manifest.json';
const SEQ_DIGITS = 10;
const SEQ_FILE = /^(\d{10})\.json$/;
const SEQ_MAX = 9_999_999_999;

export function layersFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/layers`;
}

export function tableFolder(bundle: string, table: string): string {
  return `${layersFolder(bundle)}/${checkName(table, 'table')}`;
}

export function layerPath(bundle: string, table: string, contentId: string): string {
  if (!CONTENT_ID_PATTERN.test(contentId)) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `contentId: expected 32 hex digits, got ${JSON.stringify(contentId)}`,
    );
  }
  return `${tableFolder(bundle, table)}/${contentId}.cube`;
}

export function versionsFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/versions`;
}

export function versionFolder(bundle: string, version: string): string {
  return `${versionsFolder(bundle)}/${checkName(version, 'version')}`;
}

export function versionFilePath(bundle: string, version: string, file: string): string {
  return `${versionFolder(bundle, version)}/${checkName(file, 'file')}`;
}

export function manifestPath(bundle: string, version: string): string {
  return versionFilePath(bundle, version, MANIFEST_FILE);
}

export function channelsFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/channels`;
}

export function channelFolder(bundle: string, channel: string): string {
  return `${channelsFolder(bundle)}/${checkName(channel, 'channel')}`;
}

export function channelEntryPath(bundle: string, channel: string, seq: number): string {
  if (!Number.isSafeInteger(seq) || seq < 1 || seq > SEQ_MAX) {
    throw new CubeError('INVALID_ARGUMENT', `seq: expected an integer in 1..${SEQ_MAX}`);
  }
  return `${channelFolder(bundle, channel)}/${String(seq).padStart(SEQ_DIGITS, '0')}.json`;
}

/** The seq of a channel entry's file name; undefined for any other name. */
export function seqOf(fileName: string): number | undefined {
  const digits = SEQ_FILE.exec(fileName)?.[1];
  return digits === undefined || Number(digits) === 0 ? undefined : Number(digits);
}

export function quarantineFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/quarantine`;
}

export function quarantinePath(bundle: string, version: string): string {
  return `${quarantineFolder(bundle)}/${checkName(version, 'version')}.json`;
}
