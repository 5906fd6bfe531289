/** What a build did, for people and for programs. */

export interface BuildReport {
  readonly repository: string;
  readonly bundle: string;
  readonly version: string;
  /** False: the very same version was there already. */
  readonly published: boolean;
  readonly tables: number;
  readonly rows: number;
  readonly shardNum: number;
  /** Of all layers of the version. */
  readonly bytes: number;
  readonly layersNew: number;
  /** Layers that the repository had already. */
  readonly layersShared: number;
  readonly seconds: number;
}

export function formatReport(report: BuildReport): string {
  const { bundle, version, repository, published } = report;
  const outcome = published
    ? `published version ${version} of ${bundle} in ${repository}`
    : `version ${version} of ${bundle} is published in ${repository} already, with this very content`;
  return [
    outcome,
    `  tables  ${report.tables}`,
    `  rows    ${report.rows}`,
    `  shards  ${report.shardNum}`,
    `  layers  ${report.layersNew} new, ${report.layersShared} shared`,
    `  size    ${(report.bytes / 2 ** 20).toFixed(1)} MiB`,
    `  time    ${report.seconds.toFixed(1)} s`,
  ].join('\n');
}
