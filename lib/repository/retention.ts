/** Selects the versions that garbage collection keeps. Pure. */
import { compareVersions } from '../core/names.ts';

export interface PublishedVersion {
  readonly version: string;
  /** Time since its manifest was written. */
  readonly ageMs: number;
}

export interface RetentionInput {
  /** Versions that channels point to or would roll back to, with the reason. */
  readonly referenced: ReadonlyMap<string, string>;
  readonly inProgress: ReadonlySet<string>;
  /** Not counted among the newest. */
  readonly quarantined: ReadonlySet<string>;
  readonly keepVersions: number;
  readonly keepMs: number;
}

/** @returns the versions to keep, with the reason */
export function selectRetainedVersions(
  published: readonly PublishedVersion[],
  rules: RetentionInput,
): Map<string, string> {
  const { referenced, inProgress, quarantined, keepVersions, keepMs } = rules;
  const newest = published
    .filter(({ version }) => !quarantined.has(version))
    .sort((a, b) => a.ageMs - b.ageMs || compareVersionNames(b, a))
    .slice(0, keepVersions);
  const retained = new Map<string, string>();
  for (const { version, ageMs } of published) {
    const reason =
      referenced.get(version) ??
      (inProgress.has(version) ? 'its rollout is in progress' : undefined) ??
      (ageMs <= keepMs ? 'it is recent' : undefined) ??
      (newest.some((kept) => kept.version === version) ? 'it is among the newest' : undefined);
    if (reason !== undefined) retained.set(version, reason);
  }
  return retained;
}

/** For versions of equal age: the higher number is the newer one. */
function compareVersionNames(a: PublishedVersion, b: PublishedVersion): number {
  return compareVersions(a.version, b.version);
}
