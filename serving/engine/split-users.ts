/**
 * Serves a ranking graph so that its user side runs once for each user of a batch, when slots are
 * declared user-side and the rewritten graph computes the same.
 */
import type { FeatureSpec } from '../../lib/core/slots.ts';
import type { EmbeddingPlan, GraphPlan } from '../../lib/features/graph-plan.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { type SplitInput, splitUserSide, type UserSplit } from '../../proto/onnx-user-split.ts';
import { runCheckThread } from './check-thread.ts';
import type { UserSplitReply, UserSplitRequest } from './user-split-check.ts';
import type { VersionGraph } from './version-files.ts';

const SCRIPT = new URL('./user-split-worker.js', import.meta.url);

export interface SplitGraph {
  readonly graph: VersionGraph;
  readonly plan: GraphPlan;
}

/**
 * @returns the graph and its plan as they are, when nothing belongs to users, or the rewritten
 *   graph would not compute the same
 */
export async function splitUsers(
  graph: VersionGraph,
  plan: GraphPlan,
  { features, logger }: { features: FeatureSpec; logger: Logger },
): Promise<SplitGraph> {
  const isUserPosition = (position: number): boolean => features.slots[position]?.side === 'user';
  const getPosition = ({ table }: EmbeddingPlan, column: number): number =>
    plan.tables[table]?.columns[column] ?? -1;
  const inputs = plan.embeddings.map((embedding) => ({
    name: embedding.input,
    dims: embedding.shape,
    width: plan.tables[embedding.table]?.dim ?? 0,
    isUser: Array.from(embedding.columns, (column) =>
      isUserPosition(getPosition(embedding, column)),
    ),
  }));
  const split = plan.fixedBatch > 0 ? undefined : splitUserSide(graph.model, inputs, graph.source);
  if (split === undefined) return { graph, plan };
  const request: UserSplitRequest = { original: graph.model, data: graph.data, inputs, split };
  const reply = await runCheckThread<UserSplitReply>(SCRIPT, request, graph.source);
  if (!reply.ok) {
    logger.warn(
      { source: graph.source, reason: reply.message },
      'the user side of the graph runs for every row, because the graph cannot be split',
    );
    return { graph, plan };
  }
  const { difference } = reply;
  logger.info(
    { source: graph.source, difference },
    'the user side of the graph runs once per user',
  );
  return { graph: { ...graph, model: split.model }, plan: planSplit(plan, split, isUserPosition) };
}

function planSplit(
  plan: GraphPlan,
  { inputs, rowUsers }: UserSplit,
  isUserPosition: (position: number) => boolean,
): GraphPlan {
  const embeddings = plan.embeddings.flatMap((embedding, i) =>
    (inputs[i] ?? []).map((input) => planInput(embedding, input)),
  );
  const positions = new Set(plan.tables.flatMap(({ columns }) => [...columns]));
  return {
    ...plan,
    embeddings,
    users: { input: rowUsers, positions: Int32Array.from([...positions].filter(isUserPosition)) },
  };
}

function planInput(
  embedding: EmbeddingPlan,
  { name, isUser, columns, dims }: SplitInput,
): EmbeddingPlan {
  const { table, poolings } = embedding;
  return {
    input: name,
    table,
    columns: Int32Array.from(columns, (column) => embedding.columns[column] ?? -1),
    shape: dims,
    ...(poolings === undefined ? {} : { poolings: columns.map((column) => poolings[column]) }),
    isUser,
  };
}
