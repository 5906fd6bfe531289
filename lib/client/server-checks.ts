/**
 * Findings about one cube-server's status, shared by `cube-agent doctor` and `cube-check`. Pure.
 */
import type { ControlStatus } from '../../proto/control.ts';
import { CubeError, type ErrorCode } from '../core/errors.ts';
import type { ReportFinding } from '../core/findings.ts';
import type { Manifest } from '../core/manifest.ts';
import { getTablesDigest } from '../core/manifest.ts';
import { HUGE_PAGES_FILE } from '../platform/machine.ts';
import { formatBytes } from '../platform/terminal-output.ts';

/** What a tool tells people to do: command lines, or sentences where no command fits. */
export interface ServerRemedies {
  readonly grantAccess: string;
  readonly restart: string;
  readonly undrain: string;
  readonly activate: string;
  readonly load: string;
  readonly reload: string;
}

export interface ServerCheckScope {
  /** host:port of the server. */
  readonly where: string;
  /** Only failed loads of this bundle are reported; undefined: of all. */
  readonly bundle: string | undefined;
  readonly remedies: ServerRemedies;
}

/** A server that did not answer, or refused to. */
export function reportServerError(
  { where, remedies }: ServerCheckScope,
  thrown: unknown,
  report: ReportFinding,
): void {
  const { code, message } = CubeError.from(thrown);
  const isDenied = code === 'DENIED';
  report({
    severity: 'error',
    check: isDenied ? 'server-denied' : 'server-down',
    where,
    what: message,
    todo: isDenied ? remedies.grantAccess : remedies.restart,
    code,
  });
}

/** Reports a server that drains or has no active version, and loads that failed. */
export function checkServerStatus(
  { where, bundle, remedies }: ServerCheckScope,
  status: ControlStatus,
  report: ReportFinding,
): void {
  if (status.draining) {
    report({
      severity: 'warning',
      check: 'draining',
      where,
      what: 'refuses lookups because it is draining',
      todo: remedies.undrain,
      code: 'NOT_READY',
    });
  } else if (!status.ready) {
    const loading = status.loading.map(({ version }) => version).join(', ');
    const progress = loading === '' ? '' : `; it is loading ${loading}`;
    report({
      severity: 'error',
      check: 'not-ready',
      where,
      what: `is not ready: it has no active version${progress}`,
      todo: remedies.activate,
      code: 'NOT_READY',
    });
  }
  for (const failed of status.failed) {
    if (bundle !== undefined && failed.bundle !== bundle) continue;
    report({
      severity: 'error',
      check: 'load-failed',
      where,
      what: `failed to load ${failed.bundle} ${failed.version}: ${failed.code} ${failed.message}`,
      todo: remedies.load,
      code: failed.code as ErrorCode,
    });
  }
}

/** Smaller tables gain little from huge pages. */
const HUGE_PAGES_BYTES_MIN = 1 << 30;

/** Reports a server whose large tables lie in pages of 4 KiB. */
export function checkHugePages(
  where: string,
  { memory }: ControlStatus,
  report: ReportFinding,
): void {
  const { hugePages, usedBytes } = memory;
  if (hugePages === undefined || hugePages === 'always' || usedBytes < HUGE_PAGES_BYTES_MIN) return;
  report({
    severity: 'note',
    check: 'huge-pages-off',
    where,
    what:
      `has ${formatBytes(usedBytes)} of tables in small pages (transparent huge pages: ` +
      `${hugePages}), so lookups take more CPU time`,
    todo: `on its host: echo always > ${HUGE_PAGES_FILE}, then restart the server`,
  });
}

/** Reports a server that has loaded other tables than the manifest's under the version's name. */
export function checkLoadedTables(
  { where, remedies }: ServerCheckScope,
  status: ControlStatus,
  manifest: Manifest,
  report: ReportFinding,
): void {
  const what = describeTablesMismatch(status, manifest);
  if (what === undefined) return;
  report({
    severity: 'error',
    check: 'other-rows',
    where,
    what,
    todo: remedies.reload,
    code: 'CORRUPT',
  });
}

/**
 * Undefined when the server has not loaded the version, or its tables are those of the manifest.
 */
export function describeTablesMismatch(
  { bundles }: ControlStatus,
  manifest: Manifest,
): string | undefined {
  const { bundle, version } = manifest;
  const entry = bundles.find((candidate) => candidate.bundle === bundle);
  const loaded = entry?.versions.find((candidate) => candidate.version === version);
  const expected = getTablesDigest(manifest);
  const digest = loaded?.tablesDigest ?? '';
  if (digest === '' || digest === expected) return undefined;
  const digests = `digest ${digest}, published ${expected}`;
  return `has loaded other rows under the name ${version} (${digests})`;
}
