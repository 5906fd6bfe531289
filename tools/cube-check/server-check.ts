/** A running cube-server: what it says of itself, and whether its rows are those of the manifests in a repository. */

import { readServerStatus } from '../../lib/client/server-status.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { tablesDigest } from '../../lib/core/tables-digest.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import type { BundleStatus, ControlStatus } from '../../proto/control.ts';
import type { Findings } from './findings.ts';

export interface ServerWish {
  /** host:port */
  readonly address: string;
  readonly credentials: Credentials;
  /** Undefined: versions are named, not compared. */
  readonly repository: Repository | undefined;
}

export async function checkServer(wish: ServerWish, findings: Findings): Promise<void> {
  const { address, credentials, repository } = wish;
  let status: ControlStatus;
  try {
    status = await readServerStatus(address, { credentials });
  } catch (error) {
    findings.failed(address, error);
    return;
  }
  findings.checked.servers += 1;
  const shard = `shard ${status.shardIndex} of ${status.shardNum}`;
  for (const { bundle, version, code, message } of status.failed) {
    findings.problem(
      address,
      `${address}, ${shard}: loading ${bundle} ${version} failed: ${message}`,
      code,
    );
  }
  if (!status.ready) {
    const why = status.draining === true ? 'it drains' : 'no version is active';
    findings.problem(address, `${address}, ${shard}: not ready (${why})`, 'NOT_READY');
  }
  for (const entry of status.bundles) await checkVersions(wish, shard, entry, findings, repository);
}

async function checkVersions(
  { address }: ServerWish,
  shard: string,
  { bundle, active, versions }: BundleStatus,
  findings: Findings,
  repository: Repository | undefined,
): Promise<void> {
  for (const { version, rows, tablesDigest: held } of versions) {
    findings.checked.versions += 1;
    const state = version === active ? ', active' : '';
    const what = `holds ${bundle} ${version}${state}, ${shard}, ${rows} rows`;
    if (repository === undefined) {
      findings.note(
        address,
        `${what}, tables ${held ?? 'unknown'} (say --repository to compare them)`,
      );
      continue;
    }
    try {
      const expected = tablesDigest(await repository.manifest(bundle, version));
      if (held === expected) findings.note(address, `${what}: the rows of the manifest`);
      else {
        findings.problem(
          address,
          `${address} ${what} whose tables are ${held || 'of no known digest'}, those of the manifest in ` +
            `${repository.location} are ${expected}: another content under this name; unload it and load it again`,
        );
      }
    } catch (error) {
      const { code, message } = CubeError.from(error);
      if (code === 'NOT_FOUND') findings.note(address, `${what}; ${message}`);
      else findings.failed(address, error);
    }
  }
}
