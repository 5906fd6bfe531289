/** Which versions stay, and why. Pure. */

export interface PublishedVersion {
  readonly version: string;
  /** Since its manifest was put. */
  readonly ageMs: number;
}

export interface RetentionRules {
  /** Versions that channels point to or would go back to, with the reason. */
  readonly wanted: ReadonlyMap<string, string>;
  readonly underWay: ReadonlySet<string>;
  /** They are good for nothing but looking at, so they count not among the newest. */
  readonly quarantined: ReadonlySet<string>;
  readonly keepVersions: number;
  readonly keepMs: number;
}

/** @returns the versions that stay, with the reason */
export function retainVersions(
  published: readonly PublishedVersion[],
  rules: RetentionRules,
): Map<string, string> {
  const { wanted, underWay, quarantined, keepVersions, keepMs } = rules;
  const newest = published
    .filter(({ version }) => !quarantined.has(version))
    .sort((a, b) => a.ageMs - b.ageMs || byName(b, a))
    .slice(0, keepVersions);
  const retained = new Map<string, string>();
  for (const { version, ageMs } of published) {
    const why =
      wanted.get(version) ??
      (underWay.has(version) ? 'its rollout is under way' : undefined) ??
      (ageMs <= keepMs ? 'it is young' : undefined) ??
      (newest.some((kept) => kept.version === version) ? 'it is among the newest' : undefined);
    if (why !== undefined) retained.set(version, why);
  }
  return retained;
}

/** Two that a store's clock does not tell apart: the higher number is the newer one. */
function byName(a: PublishedVersion, b: PublishedVersion): number {
  return a.version.localeCompare(b.version, 'en', { numeric: true });
}
