<?php
/** Runs the shared cases with this client: php conformance.php CASES URL VECTORS. Prints a JSON line per case. */

declare(strict_types=1);

require __DIR__ . '/Hypercube.php';

use Hypercube\Client;
use Hypercube\Hashing;
use Hypercube\HypercubeException;

function countWrong(string $path): int
{
    $wrong = 0;
    foreach (json_decode(file_get_contents($path), true) as $v) {
        if (Hashing::key($v['slot'], $v['feature'], $v['scheme'], $v['seed'], $v['modulo']) !== $v['key']) {
            $wrong++;
        }
    }
    return $wrong;
}

function runCase(array $case, string $url, string $vectors): array
{
    if ($case['call'] === 'vectors') {
        return ['wrong' => countWrong($vectors)];
    }
    $settings = $case['client'] ?? [];
    $client = new Client(
        $url . '/' . ($case['scenario'] ?? 'plain'),
        $settings['model'] ?? '',
        $settings['version'] ?? '',
        $settings['label'] ?? '',
        $settings['timeout_ms'] ?? 1000,
        $settings['retries_max'] ?? 2,
        $settings['compress'] ?? false,
        $settings['api_key'] ?? '',
    );
    $input = $case['input'] ?? [];
    $key = $case['options']['experiment_key'] ?? '';
    $priority = $case['options']['priority'] ?? null;
    $result = ['codes' => []];
    for ($i = 0; $i < ($case['repeat'] ?? 1); $i++) {
        try {
            if ($case['call'] === 'hash_row') {
                $result['keys'] = $client->hashRow($input['features']);
            } else {
                $prediction = match ($case['call']) {
                    'rows' => $client->predictRows($input['rows'], $key, $priority),
                    'tsv' => $client->predictTsv(str_repeat($input['text'], $input['times'] ?? 1), $key, $priority),
                    'columns' => $client->predictColumns($input['columns'], $key, $priority),
                    'arrays' => $client->predictArrays($input['keys'], $input['dense'], $key, $priority),
                };
                $result['probabilities'] = $prediction->probabilities;
                $result['version'] = $prediction->version;
                $result['unseen'] = $prediction->unseen;
                $result['degraded'] = $prediction->degraded;
                $result['experiments'] = (object) $prediction->experiments;
            }
            $result['codes'][] = 'OK';
        } catch (HypercubeException $error) {
            $result['codes'][] = $error->errorCode;
        } catch (Throwable $error) { // no client throws others: the test shows them
            $result['codes'][] = $error::class . ': ' . $error->getMessage();
        }
    }
    return $result;
}

[, $cases, $url, $vectors] = $argv;
foreach (json_decode(file_get_contents($cases), true)['cases'] as $case) {
    echo json_encode(['name' => $case['name']] + runCase($case, $url, $vectors)), "\n";
}
