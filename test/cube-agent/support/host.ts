/** A host for an agent: a repository, a data folder and stand-in servers. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { openRepository, type Repository } from '../../../lib/repository/repository.ts';
import {
  makeVersion,
  temporaryFolder,
  type VersionSpec,
} from '../../repository/support/fixtures.ts';
import { type RunningProcess, startAgentProcess } from '../../support/processes.ts';
import { type ControlServer, startServers } from './control-server.ts';

export interface Host {
  readonly folder: string;
  readonly location: string;
  readonly repository: Repository;
  readonly dataDir: string;
  readonly servers: readonly ControlServer[];
}

export const AUDIT: { by: string; reason: string } = { by: 'test', reason: 'test' };

export async function createHost(t: TestContext, shardNum: number): Promise<Host> {
  const folder = temporaryFolder(t);
  const location = join(folder, 'repository');
  const dataDir = join(folder, 'data');
  const repository = openRepository(location, { create: true });
  return {
    folder,
    location,
    repository,
    dataDir,
    servers: await startServers(t, shardNum, dataDir),
  };
}

export async function publish(host: Host, options: VersionSpec): Promise<void> {
  await host.repository.publish(makeVersion(join(host.folder, 'built'), options));
}

export function startAgent(
  t: TestContext,
  host: Host,
  servers: readonly ControlServer[] = host.servers,
  ...more: string[]
): RunningProcess {
  const { location, dataDir } = host;
  const addresses = servers.map(({ address }) => address);
  return startAgentProcess(t, { repository: location, dataDir, servers: addresses }, ...more);
}

/** For `waitFor`: true, or the active version of each server. */
export function areAllActive(
  version: string,
  servers: readonly ControlServer[],
): () => true | readonly string[] {
  return () =>
    servers.every(({ active }) => active === version) || servers.map(({ active }) => active);
}

export const listLayers = (host: Host): string[] => readdirSync(join(host.dataDir, 'ctr/layers/t'));
export const listVersions = (host: Host): string[] =>
  readdirSync(join(host.dataDir, 'ctr/versions'));
