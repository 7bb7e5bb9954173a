/* faults.c for a program that does not know it: armed from the environment, when the program starts. */
#include "faults.c"

#include <stdlib.h>

__attribute__((constructor)) static void arm(void)
{
    const char *below = getenv("FAULTS_BELOW");
    const char *path = getenv("FAULTS_TRACE");
    unsigned mask;
    long number;
    int what, error;
    if (!below || !path || sscanf(getenv("FAULTS_FAULT"), "%d %u %ld %d", &what, &mask, &number, &error) != 4)
        return;
    if (getenv("FAULTS_QUOTA"))
        faults_quota(atol(getenv("FAULTS_QUOTA")));
    faults_arm(below, open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), mask, number, what, error);
}
