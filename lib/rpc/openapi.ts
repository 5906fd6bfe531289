/** Builds the OpenAPI 3.1 document of a process from a table of its operations. */
import { PRODUCT_VERSION } from '../platform/version.ts';
import { JSON_CONTENT_TYPE } from './direct-routes.ts';

type Schema = Readonly<Record<string, unknown>>;

export interface Operation {
  readonly summary: string;
  /** Schemas of the body by content type; undefined: no body. */
  readonly body?: Readonly<Record<string, Schema>>;
  /** Query parameters, with what they mean. */
  readonly query?: Readonly<Record<string, string>>;
  /** The schema of a successful JSON response, or the content type of another one. */
  readonly answer?: Schema | string;
}

/** Operations by method and path, such as `GET /v2/models/{model}`. */
export type Operations = Readonly<Record<string, Operation>>;

const ERROR_SCHEMA: Schema = {
  type: 'object',
  properties: { code: { type: 'string' }, error: { type: 'string' } },
  required: ['error'],
};

/** A fastify path as OpenAPI writes it: `/v2/models/{model}`. */
export function toOpenApiPath(path: string): string {
  return path.replaceAll(/::|:(\w+)/g, (_, name?: string) =>
    name === undefined ? ':' : `{${name}}`,
  );
}

export function createOpenApi(title: string, operations: Operations): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const [key, operation] of Object.entries(operations)) {
    const [method = '', path = ''] = key.split(' ');
    const methods = paths[path] ?? {};
    methods[method.toLowerCase()] = formatOperation(path, operation);
    paths[path] = methods;
  }
  return {
    openapi: '3.1.0',
    info: { title, version: PRODUCT_VERSION },
    paths,
    components: { schemas: { Error: ERROR_SCHEMA } },
  };
}

function formatOperation(path: string, { summary, body, query, answer = {} }: Operation): object {
  const inPath = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => {
    return { name, in: 'path', required: true, schema: { type: 'string' } };
  });
  const inQuery = Object.entries(query ?? {}).map(([name, description]) => {
    return { name, in: 'query', description, schema: { type: 'string' } };
  });
  const content =
    typeof answer === 'string'
      ? { [answer]: { schema: { type: 'string' } } }
      : { [JSON_CONTENT_TYPE]: { schema: answer } };
  const error = { schema: { $ref: '#/components/schemas/Error' } };
  return {
    summary,
    ...(inPath.length + inQuery.length > 0 && { parameters: [...inPath, ...inQuery] }),
    ...(body !== undefined && { requestBody: { content: mapSchemas(body) } }),
    responses: {
      200: { description: 'The answer', content },
      default: { description: 'An error', content: { [JSON_CONTENT_TYPE]: error } },
    },
  };
}

function mapSchemas(schemas: Readonly<Record<string, Schema>>): object {
  return Object.fromEntries(Object.entries(schemas).map(([type, schema]) => [type, { schema }]));
}
