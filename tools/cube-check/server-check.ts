/** Checks a running cube-server: its status, and its tables against a repository. */
import {
  checkServerStatus,
  reportServerError,
  type ServerRemedies,
} from '../../lib/client/server-checks.ts';
import {
  createOriginalServerError,
  isOriginal,
  readServerStatus,
} from '../../lib/client/server-status.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Finding } from '../../lib/core/findings.ts';
import { getTablesDigest } from '../../lib/core/manifest.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import type { BundleStatus, ControlStatus } from '../../proto/control.ts';
import type { CheckReport } from './check-report.ts';

const REMEDIES: ServerRemedies = {
  grantAccess: 'pass its token with --control-token-file, or a certificate',
  restart: 'check that cube-server runs at this address',
  undrain: 'run cube-agent fleet undrain to have it answer again',
  activate: 'read the status of its agent with cube-agent status',
  load: 'read the status of its agent with cube-agent status',
  reload: 'unload the version and load it again',
};

export interface ServerCheckOptions {
  /** host:port */
  readonly address: string;
  readonly credentials: Credentials;
  /** Undefined: the loaded versions are listed, not compared. */
  readonly repository: Repository | undefined;
}

export async function checkServer(options: ServerCheckOptions, report: CheckReport): Promise<void> {
  const { address, credentials } = options;
  const scope = { where: address, bundle: undefined, remedies: REMEDIES };
  // Every problem counts here, a draining server too: the command checks this one server.
  const add = (finding: Finding): void => report.add({ ...finding, severity: 'error' });
  let status: ControlStatus;
  try {
    const found = await readServerStatus(address, { credentials });
    if (isOriginal(found)) {
      reportOriginal(options, found.originalVersion, report);
      return;
    }
    status = found;
  } catch (error) {
    reportServerError(scope, error, add);
    return;
  }
  report.checked.servers += 1;
  checkServerStatus(scope, status, add);
  for (const entry of status.bundles) await checkVersions(options, status, entry, report);
}

/** Nothing shows whether the rows of Cube's own files are right. */
function reportOriginal(
  { address, repository }: ServerCheckOptions,
  version: string,
  report: CheckReport,
): void {
  report.checked.servers += 1;
  const source = version === '' ? 'its data folder' : `version ${version}`;
  report.addNote(
    address,
    `is a server of PaddlePaddle Cube (C++); it answers seeks from ${source}`,
  );
  if (repository === undefined) return;
  const todo = 'compare rows with cube-cli seek --dict, or check it without --repository';
  report.addError(address, createOriginalServerError(address, todo));
}

async function checkVersions(
  { address, repository }: ServerCheckOptions,
  { shardIndex, shardNum }: ControlStatus,
  { bundle, active, versions }: BundleStatus,
  report: CheckReport,
): Promise<void> {
  for (const { version, rows, tablesDigest } of versions) {
    report.checked.versions += 1;
    const state = version === active ? ', active' : '';
    const shard = `shard ${shardIndex} of ${shardNum}`;
    const what = `has loaded ${bundle} ${version}${state}, ${shard}, ${rows} rows`;
    if (repository === undefined) {
      const digest = `tables ${tablesDigest ?? 'unknown'} (compare them with --repository)`;
      report.addNote(address, `${what}, ${digest}`);
      continue;
    }
    try {
      const expected = getTablesDigest(await repository.readManifest(bundle, version));
      if (tablesDigest === expected) {
        report.addNote(address, `${what}; its tables are those of the manifest`);
        continue;
      }
      report.addProblem(
        address,
        `${what}; its tables have ${tablesDigest ? `digest ${tablesDigest}` : 'no digest'}, but ` +
          `those of the manifest in ${repository.location} have digest ${expected}`,
        { todo: REMEDIES.reload },
      );
    } catch (error) {
      const { code, message } = CubeError.from(error);
      if (code === 'NOT_FOUND') report.addNote(address, `${what}; ${message}`);
      else report.addError(address, error);
    }
  }
}
