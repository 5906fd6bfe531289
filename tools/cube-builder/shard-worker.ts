/** Worker thread that builds one shard at a time and replies to each task, also after errors. */
import { parentPort } from 'node:worker_threads';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { type BuiltShard, buildShard, type ShardTask } from './shard-build.ts';

export type ShardResult =
  | { readonly built: BuiltShard }
  | { readonly failed: { readonly code: ErrorCode; readonly message: string } };

parentPort?.on('message', (task: ShardTask | 'end') => {
  if (task === 'end') {
    parentPort?.close();
    return;
  }
  let result: ShardResult;
  try {
    result = { built: buildShard(task) };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    result = { failed: { code, message } };
  }
  parentPort?.postMessage(result);
});
