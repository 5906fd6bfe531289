import { CubeServer, type CubeServerOptions } from '../../../cube-server/server.ts';
import { DEFAULT_SERVER_LIMITS } from '../../../lib/core/limits.ts';
import { createLogger } from '../../../lib/platform/logs.ts';

/** The server of a single shard, without threads or a control token unless `options` say so. */
export function createServer(
  dataFolder: string,
  options: Partial<CubeServerOptions> = {},
): CubeServer {
  return new CubeServer({
    shardIndex: 0,
    shardNum: 1,
    dataFolder,
    memoryBytes: 64 << 20,
    cubeTable: undefined,
    controlTokenFile: undefined,
    retireGraceMs: 0,
    limits: DEFAULT_SERVER_LIMITS,
    logger: createLogger('test', { level: 'silent' }),
    ...options,
  });
}
