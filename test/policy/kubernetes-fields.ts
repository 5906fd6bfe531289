/**
 * The fields of Kubernetes resources that our manifests use, with their types. The schemas that
 * Kubernetes publishes allow unknown fields, so a misspelled probe is valid there; here it is not.
 */

/** A type's name, the fields of an object, or the type of a list's elements. */
type Type = 'string' | 'number' | 'boolean' | 'port' | 'map' | Fields | readonly [Type];
interface Fields {
  readonly [name: string]: Type;
}

const METADATA: Fields = { name: 'string', labels: 'map' };
const SELECTOR: Fields = { matchLabels: 'map' };
const PROBE: Fields = {
  httpGet: { path: 'string', port: 'port' },
  periodSeconds: 'number',
  failureThreshold: 'number',
};

const CONTAINER: Fields = {
  name: 'string',
  image: 'string',
  command: ['string'],
  args: ['string'],
  ports: [{ name: 'string', containerPort: 'number' }],
  livenessProbe: PROBE,
  readinessProbe: PROBE,
  lifecycle: { preStop: { exec: { command: ['string'] } } },
  resources: { requests: 'map', limits: 'map' },
  securityContext: {
    allowPrivilegeEscalation: 'boolean',
    readOnlyRootFilesystem: 'boolean',
    capabilities: { drop: ['string'] },
  },
  volumeMounts: [{ name: 'string', mountPath: 'string', readOnly: 'boolean' }],
};

const TEMPLATE: Fields = {
  metadata: METADATA,
  spec: {
    terminationGracePeriodSeconds: 'number',
    securityContext: {
      runAsNonRoot: 'boolean',
      runAsUser: 'number',
      fsGroup: 'number',
      seccompProfile: { type: 'string' },
    },
    topologySpreadConstraints: [
      {
        maxSkew: 'number',
        minDomains: 'number',
        topologyKey: 'string',
        whenUnsatisfiable: 'string',
        labelSelector: SELECTOR,
      },
    ],
    containers: [CONTAINER],
    volumes: [
      {
        name: 'string',
        configMap: { name: 'string' },
        emptyDir: {},
        secret: { secretName: 'string', defaultMode: 'number' },
      },
    ],
  },
};

const RESOURCES: Readonly<Record<string, Fields>> = {
  'v1 ConfigMap': { data: 'map' },
  'v1 Service': {
    spec: {
      clusterIP: 'string',
      publishNotReadyAddresses: 'boolean',
      selector: 'map',
      ports: [{ name: 'string', port: 'number', targetPort: 'port' }],
    },
  },
  'policy/v1 PodDisruptionBudget': { spec: { maxUnavailable: 'port', selector: SELECTOR } },
  'apps/v1 Deployment': {
    spec: {
      replicas: 'number',
      strategy: { rollingUpdate: { maxUnavailable: 'port', maxSurge: 'port' } },
      selector: SELECTOR,
      template: TEMPLATE,
    },
  },
  'apps/v1 StatefulSet': {
    spec: {
      serviceName: 'string',
      replicas: 'number',
      podManagementPolicy: 'string',
      selector: SELECTOR,
      template: TEMPLATE,
      volumeClaimTemplates: [
        {
          metadata: METADATA,
          spec: { accessModes: ['string'], resources: { requests: 'map' } },
        },
      ],
    },
  },
};

/** @returns a complaint for each field that is unknown or of another type */
export function checkFields(resource: object): string[] {
  const { apiVersion, kind } = resource as { apiVersion?: string; kind?: string };
  const fields = RESOURCES[`${apiVersion} ${kind}`];
  if (fields === undefined) return [`unknown resource ${apiVersion} ${kind}`];
  const all = { apiVersion: 'string', kind: 'string', metadata: METADATA, ...fields } as const;
  return checkType(resource, all, `${kind}`);
}

function checkType(value: unknown, type: Type, path: string): string[] {
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
  if (Array.isArray(type)) {
    if (!Array.isArray(value)) return [`${path} is not a list`];
    return value.flatMap((element, i) => checkType(element, type[0], `${path}[${i}]`));
  }
  if (typeof type === 'object') {
    if (!isObject) return [`${path} is not an object`];
    const fields = type as Fields;
    return Object.entries(value).flatMap(([name, field]) => {
      const known = Object.hasOwn(fields, name) ? fields[name] : undefined;
      if (known === undefined) return [`${path} has no field ${name}`];
      return checkType(field, known, `${path}.${name}`);
    });
  }
  const isRight =
    type === 'map'
      ? isObject && Object.values(value).every((field) => typeof field === 'string')
      : type === 'port'
        ? typeof value === 'string' || typeof value === 'number'
        : typeof value === type;
  return isRight ? [] : [`${path} is not a ${type}`];
}
