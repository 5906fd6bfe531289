/**
 * A funnel: recall candidates of a user, rank them with one model, apply rules. The features of the
 * user are sent once; the ranker's op repeats them for each candidate.
 *
 *   serving --pipeline examples/pipeline-funnel/service.ts \
 *     --config examples/pipeline-funnel/config.yml
 */
import {
  CubeError,
  createTensor,
  Op,
  type OpContext,
  type PipelineRequest,
  type PipelineTensor,
  productError,
  RequestOp,
  ResponseOp,
} from 'hypercube/pipeline';

const CANDIDATES = 200;
const DENSE = 13;
/** The first features of the model belong to the user, the others to the candidate. */
const USER_FEATURES = 8;
const ANSWERS = 10;
/** At most this many candidates of one category are answered. */
const PER_CATEGORY = 3;
/** The code that callers know: the user sees no candidate. */
const NOTHING_TO_SHOW = 61;

interface User {
  readonly user: string;
  readonly features: readonly number[];
  /** Categories that the user does not want. */
  readonly blocked: readonly number[];
}

interface Candidate {
  readonly id: number;
  readonly category: number;
  readonly features: readonly number[];
}

class ReadUser extends RequestOp<User> {
  override unpackRequest({ values }: PipelineRequest): User {
    const { user, features, blocked } = values;
    const numbers = toNumbers(features);
    if (typeof user !== 'string' || numbers.length !== USER_FEATURES) {
      throw new CubeError('INVALID_ARGUMENT', `send user and ${USER_FEATURES} features`);
    }
    return { user, features: numbers, blocked: toNumbers(blocked) };
  }
}

/** Numbers separated by commas. */
function toNumbers(text: unknown): number[] {
  const parts = typeof text === 'string' && text !== '' ? text.split(',') : [];
  return parts.map(Number).filter(Number.isFinite);
}

type FromUser = { readonly '@DAGExecutor': User };

/** In place of a service: candidates that depend on the user's name alone. */
class Recall extends Op<FromUser, { candidates: readonly Candidate[] }> {
  override preprocess({ '@DAGExecutor': { user } }: FromUser) {
    let state = 1;
    for (const letter of user) state = (31 * state + (letter.codePointAt(0) ?? 0)) % 65_521;
    const candidates = Array.from({ length: CANDIDATES }, (_, i): Candidate => {
      const features = Array.from({ length: DENSE - USER_FEATURES }, (_, j) => {
        return Math.sin(state + 7 * i + j);
      });
      return { id: 1_000 + i, category: (state + i) % 12, features };
    });
    return { candidates };
  }
}

type FromRecall = FromUser & { readonly recall: { readonly candidates: readonly Candidate[] } };

class Rank extends Op<FromRecall, { scores: PipelineTensor }> {
  override preprocess({ '@DAGExecutor': { features }, recall: { candidates } }: FromRecall) {
    const dense = new Float32Array(candidates.length * DENSE);
    for (const [row, candidate] of candidates.entries()) {
      dense.set(features, row * DENSE);
      dense.set(candidate.features, row * DENSE + USER_FEATURES);
    }
    return { dense: createTensor('FP32', [candidates.length, DENSE], dense) };
  }

  override postprocess(_inputs: FromRecall, { prob }: { prob: PipelineTensor }) {
    return { scores: prob };
  }
}

type FromRank = FromRecall & { readonly rank: { readonly scores: PipelineTensor } };

class Rerank extends Op<FromRank, { ids: string; scores: string }> {
  override preprocess({ '@DAGExecutor': user, recall, rank }: FromRank, { logger }: OpContext) {
    const ranked = recall.candidates
      .map((candidate, i) => ({ ...candidate, score: Number(rank.scores.data[2 * i + 1]) }))
      .filter(({ category }) => !user.blocked.includes(category))
      .sort((a, b) => b.score - a.score);
    const counts = new Map<number, number>();
    const shown = ranked.filter(({ category }) => {
      const count = (counts.get(category) ?? 0) + 1;
      counts.set(category, count);
      return count <= PER_CATEGORY;
    });
    if (shown.length === 0) {
      logger.info({ blocked: user.blocked.length }, 'no candidate is left');
      return productError(NOTHING_TO_SHOW, 'the user has blocked every category');
    }
    const answer = shown.slice(0, ANSWERS);
    return {
      ids: answer.map(({ id }) => id).join(','),
      scores: answer.map(({ score }) => score.toFixed(6)).join(','),
    };
  }
}

const read = new ReadUser();
const recall = new Recall({ name: 'recall', inputs: [read] });
const rank = new Rank({ name: 'rank', inputs: [read, recall] });
const rerank = new Rerank({ name: 'rerank', inputs: [read, recall, rank] });

export default { name: 'funnel', ops: new ResponseOp({ inputs: [rerank] }) };
