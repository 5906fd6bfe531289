/** The options that select a source of rows: a file, a version of a repository, or servers. */

import { basename, dirname } from 'node:path';
import { CubeConf } from '../../lib/client/cube-conf.ts';
import { FleetFile } from '../../lib/client/fleet-file.ts';
import type { RouteOptions } from '../../lib/client/fleet-routes.ts';
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { findShardMap } from '../../lib/core/fleet.ts';
import { getShardNum, type Manifest } from '../../lib/core/manifest.ts';
import {
  type Command,
  InvalidArgumentError,
  optionWithEnv,
  parseIntegerBetween,
  parseNameOption,
} from '../../lib/platform/cli.ts';
import {
  addDecryptOptions,
  type DecryptOptions,
  useDecryptKeys,
} from '../../lib/platform/encryption-options.ts';
import { fileExists, isFolder } from '../../lib/platform/files.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { parseVersionFolder } from '../../lib/repository/version-folder.ts';
import {
  addCallerTlsOptions,
  type CallerOptions,
  createServerCredentials,
} from '../../lib/rpc/credential-options.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';
import { ClusterSource, DictSource } from './cluster-source.ts';
import { FileSource, openLayerTable } from './file-source.ts';
import { FleetDiscovery } from './fleet-discovery.ts';
import type { RowSource } from './row-source.ts';

/** Reports wrong usage and ends the command. */
export type FailUsage = (text: string) => never;

export interface FileFlags extends DecryptOptions {
  readonly file?: string;
  readonly repository?: string;
  readonly bundle?: string;
  readonly version?: string;
  readonly channel: string;
}

export interface SourceFlags extends FileFlags, CallerOptions {
  readonly fleet?: string;
  readonly server?: readonly string[];
  readonly cubeConf?: string;
  readonly dict?: string;
  readonly timeoutMs: number;
}

export function addFileOptions(command: Command): Command {
  return addDecryptOptions(command)
    .option('--file <path>', 'Layer file, or folder of a version')
    .option('--repository <folder>', 'Repository folder of the version')
    .option('--bundle <name>', 'Bundle of the version', parseNameOption('bundle'))
    .option(
      '--version <name>',
      'Version to read (default: the one that --channel points to)',
      parseNameOption('version'),
    )
    .option(
      '--channel <name>',
      'Channel that selects the version when --version is absent',
      parseNameOption('channel'),
      'stable',
    );
}

export function addSourceOptions(command: Command): Command {
  const options = addFileOptions(command)
    .option('--fleet <file>', 'fleet.json of the servers to query (default: none)')
    .option(
      '--server <host:port>',
      'Address of a server to query; repeat for several (default: none)',
      collectEndpoint,
    )
    .option('--cube-conf <file>', "Cube's cube.conf of the servers to query (default: none)")
    .option(
      '--dict <name>',
      "Dict to read with Cube's own protocol from the servers' active version (only seek)",
    )
    .option(
      '--timeout-ms <ms>',
      'Timeout of a call in milliseconds',
      parseIntegerBetween(1, 600_000),
      2_000,
    )
    .addOption(
      optionWithEnv(
        '--control-token-file <file>',
        'File with the control token of the servers (default: none)',
        'CUBE_CONTROL_TOKEN_FILE',
      ),
    );
  return addCallerTlsOptions(options);
}

function collectEndpoint(text: string, before: readonly string[] = []): string[] {
  try {
    parseEndpoint(text);
  } catch (error) {
    throw new InvalidArgumentError((error as Error).message);
  }
  return [...before, text];
}

/** A version in a repository's folder. */
export interface LocatedVersion {
  readonly root: string;
  readonly manifest: Manifest;
}

/** Returns undefined when the options select no version. */
export async function locateVersion(
  flags: FileFlags,
  failUsage: FailUsage,
): Promise<LocatedVersion | undefined> {
  const { file, repository: root, bundle, channel } = flags;
  useDecryptKeys(flags);
  if (file !== undefined) {
    const folder = basename(file) === 'manifest.json' ? dirname(file) : file;
    if (!isFolder(folder) || (folder !== file && !fileExists(file))) return undefined;
    const address = parseVersionFolder(folder);
    return readVersion(address.root, address.bundle, address.version);
  }
  if (root === undefined) return undefined;
  if (bundle === undefined) return failUsage('--repository needs --bundle');
  if (flags.version !== undefined) return readVersion(root, bundle, flags.version);
  const { pointer } = await openRepository(root).readChannel(bundle, channel);
  if (pointer !== undefined) return readVersion(root, bundle, pointer.version);
  throw new CubeError(
    'NOT_FOUND',
    `channel ${channel} of ${bundle} in ${root} points to no version: give --version`,
  );
}

async function readVersion(root: string, bundle: string, version: string): Promise<LocatedVersion> {
  const repository = openRepository(root);
  return { root: repository.location, manifest: await repository.readManifest(bundle, version) };
}

function checkSourceOptions(flags: SourceFlags, failUsage: FailUsage): void {
  const { file, repository, fleet, server, cubeConf, dict } = flags;
  const count = (...given: unknown[]): number =>
    given.filter((value) => value !== undefined).length;
  if (count(file, repository) > 1)
    failUsage('--file and --repository exclude each other: give one of them');
  if (count(fleet, server, cubeConf) > 1) {
    failUsage('--fleet, --server and --cube-conf exclude each other: give one of them');
  }
  if (count(file, repository, fleet, server, cubeConf) === 0) {
    failUsage('no source of rows: give --file, --repository, --fleet, --server or --cube-conf');
  }
  if (cubeConf !== undefined && dict === undefined) failUsage('--cube-conf needs --dict');
  const remote = count(fleet, server) > 0;
  if (remote && count(file, repository) === 0 && dict === undefined) {
    failUsage(
      '--fleet and --server need a version (--repository, or --file with its folder) or --dict',
    );
  }
  if (dict !== undefined && count(file, repository) > 0) {
    failUsage('--dict reads the active version of the servers: remove --repository and --file');
  }
}

/** Opens the source that the options select. @throws CubeError when it cannot be opened */
export async function openSource(flags: SourceFlags, failUsage: FailUsage): Promise<RowSource> {
  checkSourceOptions(flags, failUsage);
  const { file, fleet, server, cubeConf, dict, timeoutMs } = flags;
  const located = await locateVersion(flags, failUsage);
  if (cubeConf !== undefined && dict !== undefined) {
    const conf = await CubeConf.open(cubeConf);
    conf.getPolicy(dict);
    return createDictSource(dict, { options: conf.routeOptions }, timeoutMs);
  }
  if (fleet === undefined && server === undefined) {
    if (located !== undefined) return FileSource.openVersion(located.root, located.manifest);
    return new FileSource([openLayerTable(requireDefined(file, '--file'))], undefined);
  }
  const name = dict ?? located?.manifest.bundle;
  if (name === undefined)
    return failUsage('with --fleet or --server, --file must be the folder of a version');
  const routes = await resolveRoutes(flags, name, located?.manifest);
  if (dict !== undefined) return createDictSource(dict, routes, timeoutMs);
  const { manifest } = requireDefined(located, '--repository');
  return new ClusterSource(manifest, routes.options, timeoutMs);
}

/** The servers to ask. */
interface Routes {
  readonly options: RouteOptions;
  /** What is uncertain about them. */
  readonly warning?: string | undefined;
}

function createDictSource(
  dict: string,
  { options, warning }: Routes,
  timeoutMs: number,
): DictSource {
  const maps = options.fleet().bundles.get(dict) ?? [];
  const { shardNum } = maps[0] ?? findShardMap(options.fleet(), dict, 0);
  return new DictSource(dict, shardNum, options, { timeoutMs, warning });
}

async function resolveRoutes(
  flags: SourceFlags,
  bundle: string,
  manifest: Manifest | undefined,
): Promise<Routes> {
  const { fleet: path, server = [] } = flags;
  const credentials = createServerCredentials(flags);
  if (path !== undefined) {
    const file = new FleetFile(path, { onInvalid: () => undefined });
    return { options: { fleet: () => file.current(), credentials } };
  }
  const discovery = new FleetDiscovery(bundle, manifest && getShardNum(manifest));
  for (const address of server) await discovery.ask(address, credentials);
  const fleet = discovery.createFleet();
  return { options: { fleet: () => fleet, credentials }, warning: discovery.warning };
}
