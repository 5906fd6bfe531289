/**
 * The paths of a repository and of a host's data folder, relative to their root: they have one
 * layout (docs/formats/repository.md). Pure; "/" separates on every system. Every name is checked
 * here, so a path cannot leave its root.
 */
import { CubeError } from '../core/errors.ts';
import { CONTENT_ID_PATTERN, checkName } from '../core/names.ts';

export const MANIFEST_FILE = 'manifest.json';
const SEQ_DIGITS = 10;
const SEQ_FILE = /^(\d{10})\.json$/;
export const SEQ_MAX = 9_999_999_999;

/** Limit of a manifest or a file in a version's folder: they are read into memory as a whole. */
export const VERSION_FILE_BYTES_MAX: number = 2 ** 31;

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

/** The signature of a manifest by one key; several keys may sign it. */
export function manifestSignaturePath(bundle: string, version: string, keyId: string): string {
  return versionFilePath(bundle, version, `manifest.${keyId}.sig`);
}

/** @param fileName in a version's folder */
export function isManifestSignature(fileName: string): boolean {
  return /^manifest\.[0-9a-f]{16}\.sig$/.test(fileName);
}

/** The manifest that a publisher is about to put: garbage collection keeps what it references. */
export function intentPath(bundle: string, attempt: string): string {
  return `${intentsFolder(bundle)}/${checkName(attempt, 'publication')}.json`;
}

export function intentsFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/publishing`;
}

/** Exists while a garbage collection runs. */
export function collectionMarkPath(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/gc/collecting.json`;
}

export function rolloutsFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/rollouts`;
}

export function rolloutFolder(bundle: string, version: string): string {
  return `${rolloutsFolder(bundle)}/${checkName(version, 'version')}`;
}

export function rolloutEntryPath(bundle: string, version: string, seq: number): string {
  return `${rolloutFolder(bundle, version)}/${seqFileName(seq)}`;
}

/** @param n number of the gate's run for this version, from 1 */
export function gateReportPath(
  bundle: string,
  version: string,
  n: number,
  kind: 'json' | 'txt' | 'html',
): string {
  return `${rolloutFolder(bundle, version)}/${checkName(`gate-${n}.${kind}`, 'report')}`;
}

/** Limits of the gate for all versions of a bundle. */
export function policyFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/policy`;
}

export function policyEntryPath(bundle: string, seq: number): string {
  return `${policyFolder(bundle)}/${seqFileName(seq)}`;
}

/** The experiments that run on a bundle. */
export function experimentsFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/experiments`;
}

export function experimentEntryPath(bundle: string, seq: number): string {
  return `${experimentsFolder(bundle)}/${seqFileName(seq)}`;
}

export function channelsFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/channels`;
}

export function channelFolder(bundle: string, channel: string): string {
  return `${channelsFolder(bundle)}/${checkName(channel, 'channel')}`;
}

export function channelEntryPath(bundle: string, channel: string, seq: number): string {
  return `${channelFolder(bundle, channel)}/${seqFileName(seq)}`;
}

function seqFileName(seq: number): string {
  if (!Number.isSafeInteger(seq) || seq < 1 || seq > SEQ_MAX) {
    throw new CubeError('INVALID_ARGUMENT', `seq: expected an integer in 1..${SEQ_MAX}`);
  }
  return `${String(seq).padStart(SEQ_DIGITS, '0')}.json`;
}

/** The seq of a log entry's file name; undefined for any other name. */
export function parseSeq(fileName: string): number | undefined {
  const digits = SEQ_FILE.exec(fileName)?.[1];
  return digits === undefined || Number(digits) === 0 ? undefined : Number(digits);
}

export function quarantineFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/quarantine`;
}

export function quarantinePath(bundle: string, version: string): string {
  return `${quarantineFolder(bundle)}/${checkName(version, 'version')}.json`;
}

export function outcomesFolder(bundle: string): string {
  return `${checkName(bundle, 'bundle')}/outcomes`;
}

/** Exists once a version has served, or failed to load, in some process. */
export function outcomePath(bundle: string, version: string, outcome: 'served' | 'failed'): string {
  return `${outcomesFolder(bundle)}/${checkName(version, 'version')}.${outcome}.json`;
}
