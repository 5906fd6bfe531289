/** `cube-agent deploy-cube`: deploys a version to C++ cube-servers and verifies it by lookups. */

import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { getShardNum, requireClear } from '../../lib/core/manifest.ts';
import { type Command, parseIntegerBetween, parseNameOption } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import { type CallerOptions, createServerCredentials } from '../../lib/rpc/credential-options.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';
import type { DeployTarget } from '../cube/cube-deploy.ts';
import { type CubeInstance, readTransferConf, type TransferConf } from '../cube/transfer-conf.ts';
import {
  addDryRunOption,
  addJsonOption,
  addRepositoryOption,
  addServerCredentialOptions,
  addTrustedKeysOption,
  addVersionOption,
  collectEndpoints,
  openRepositoryWithKeys,
} from './options.ts';

interface DeployOptions extends CallerOptions {
  readonly config: string;
  readonly repository: string;
  readonly version: string;
  readonly bundle?: string;
  readonly table?: string;
  readonly host?: string;
  readonly server?: readonly string[];
  readonly samples: number;
  readonly loadTimeoutMs: number;
  readonly dryRun?: boolean;
  readonly json?: boolean;
  readonly trustedKeys?: string;
}

const EXAMPLES = `
Example, on host 10.0.0.1:
  cube-agent deploy-cube --config /home/cube/conf/transfer.conf --host 10.0.0.1 \\
    --repository /srv/models --version 1628131462_1628131999

Servers are deployed one after another. A server that returns a wrong value for a sampled key is
switched back to its previous version, and the command stops. To go back, deploy the earlier
version.`;

export function addDeployCubeCommand(program: Command): void {
  const command = addTrustedKeysOption(
    addServerCredentialOptions(program.command('deploy-cube')),
  ).requiredOption('--config <file>', 'transfer.conf with the servers and their deploy paths');
  addJsonOption(
    addDryRunOption(addVersionOption(addRepositoryOption(command), 'Version to deploy')),
  )
    .description(
      'Deploy a version to original PaddlePaddle Cube servers: write, load, switch, verify',
    )
    .option(
      '--bundle <name>',
      'Bundle name (default: dict_name of --config)',
      parseNameOption('bundle'),
    )
    .option(
      '--table <name>',
      'Table to deploy (default: the only table of the version)',
      parseNameOption('table'),
    )
    .option(
      '--host <host>',
      'Deploy only to the servers on this host. Run the command there: it writes to their deploy ' +
        'paths as local folders (default: all servers)',
    )
    .option(
      '--server <host:port>',
      'Deploy only this server; repeatable (default: all servers)',
      collectEndpoints,
    )
    .option(
      '--samples <n>',
      'Number of keys to verify on each server',
      parseIntegerBetween(4, 100_000),
      10_000,
    )
    .option(
      '--load-timeout-ms <n>',
      'Timeout of loading the version on one server, in milliseconds',
      parseIntegerBetween(1, 86_400_000),
      3_600_000,
    )
    .addHelpText('after', EXAMPLES)
    .action(deploy);
}

async function deploy(options: DeployOptions): Promise<void> {
  const { version, samples, loadTimeoutMs, dryRun = false, json } = options;
  const conf = readTransferConf(options.config);
  const repository = openRepositoryWithKeys(options);
  const manifest = await repository.readManifest(options.bundle ?? conf.dictName, version);
  requireClear(manifest, "Cube's files");
  if (getShardNum(manifest) !== conf.shardNum) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `version ${version} has ${getShardNum(manifest)} shards, but ${options.config} has ` +
        `shard_num ${conf.shardNum}; build the version with that number`,
    );
  }
  const { selectExportedTable } = await import('../cube/shard-export.ts');
  const table = selectExportedTable(manifest, options.table);
  const instances = selectInstances(conf, options);
  const servers = instances.map(({ server, shard, deployPath }) => {
    return { server, shard, folder: join(deployPath, 'data', version) };
  });
  if (dryRun) {
    if (json) printLine(JSON.stringify({ version, servers, dryRun }));
    for (const { server, shard, folder } of json ? [] : servers) {
      printLine(`${server}: would get shard ${shard} of ${version} in ${folder}`);
    }
    return;
  }
  const { deployCube } = await import('../cube/cube-deploy.ts');
  const targets = await Promise.all(instances.map((one) => openTarget(one, conf, options)));
  try {
    const tell = (text: string): void => {
      if (!json) printLine(text);
    };
    await deployCube(targets, {
      repository,
      manifest,
      table,
      samples,
      loadTimeoutMs,
      onProgress: tell,
    });
    if (json) printLine(JSON.stringify({ version, servers, dryRun }));
  } finally {
    for (const { client } of targets) client.close();
  }
}

function selectInstances(
  { instances }: TransferConf,
  { host, server, config }: DeployOptions,
): CubeInstance[] {
  const unknown = server?.find((address) => instances.every((one) => one.server !== address));
  if (unknown !== undefined) throw new CubeError('NOT_FOUND', `${config} has no server ${unknown}`);
  const found = instances.filter(
    (one) =>
      (host === undefined || parseEndpoint(one.server).host === host) &&
      (server === undefined || server.includes(one.server)),
  );
  if (found.length > 0) return found;
  const hosts = new Set(instances.map((one) => parseEndpoint(one.server).host));
  throw new CubeError(
    'NOT_FOUND',
    `${config} has no server on ${host} (hosts: ${[...hosts].join(', ')})`,
  );
}

async function openTarget(
  { server, shard, deployPath }: CubeInstance,
  { shardNum }: TransferConf,
  options: DeployOptions,
): Promise<DeployTarget> {
  const { CubeServerClient } = await import('../cube/cube-server-client.ts');
  const credentials = createServerCredentials(options);
  const client = new CubeServerClient({
    address: server,
    shard,
    shardNum,
    credentials,
    clock: systemClock,
  });
  return { client, shard, dataFolder: join(deployPath, 'data') };
}
