#!/bin/sh
# Fills the broker template from the environment, formats an empty volume, becomes the broker.
# Alone it needs nothing set; a cluster sets NODE_ID, VOTERS, REPLICAS, MIN_ISR and the addresses.
set -eu

here=/opt/kafka
node_id=${NODE_ID:-1}
self=${BROKER_HOST:-$(hostname)}
voters=${VOTERS:-$node_id@$self:9094}
client=${CLIENT_ADDRESS:-$self:9092}
outer=${OUTER_ADDRESS:-$client}

render() { # data folder -> broker.properties on stdout
    sed -e "s|\${node_id}|$node_id|" \
        -e "s|\${voters}|$voters|" \
        -e "s|\${data}|$1|" \
        -e "s|\${listeners}|CLIENT://:9092,BROKER://:9093,CONTROLLER://:9094,OUTER://:9095|" \
        -e "s|\${advertised}|CLIENT://$client,BROKER://$self:9093,OUTER://$outer|" \
        -e "s|\${replicas}|${REPLICAS:-1}|" \
        -e "s|\${min_isr}|${MIN_ISR:-1}|" \
        "$here/broker.properties"
}

if [ ! -d /data/broker ]; then
    # Beside its place, then renamed: storage is whole or absent.
    rm -rf /data/fresh
    render /data/fresh >/tmp/format.properties
    java -cp "$here/jars/*" kafka.tools.StorageTool format \
        -t "${CLUSTER_ID:-VGlkZW1pbGwtY29tcG9zZQ}" -c /tmp/format.properties
    mv /data/fresh /data/broker
fi

render /data/broker >/tmp/broker.properties
# JVM_OPTIONS is a list of words on purpose.
# shellcheck disable=SC2086
exec java ${JVM_OPTIONS:--Xms128m -Xmx512m} -XX:+ExitOnOutOfMemoryError -Djava.awt.headless=true \
    -Dlog4j2.configurationFile="file:$here/log4j2.properties" \
    -cp "$here/jars/*" kafka.Kafka /tmp/broker.properties
