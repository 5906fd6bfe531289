/** A thread that builds shards, one at a time. It answers every task, an error included, and ends when told to. */
import { parentPort } from 'node:worker_threads';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { type BuiltShard, buildShard, type ShardTask } from './shard-build.ts';

export type ShardAnswer =
  | { readonly built: BuiltShard }
  | { readonly failed: { readonly code: ErrorCode; readonly message: string } };

parentPort?.on('message', (task: ShardTask | 'end') => {
  if (task === 'end') {
    parentPort?.close();
    return;
  }
  let answer: ShardAnswer;
  try {
    answer = { built: buildShard(task) };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    answer = { failed: { code, message } };
  }
  parentPort?.postMessage(answer);
});
